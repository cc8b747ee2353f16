"""Draws impressions with known chances of a click, and of a conversion after it.

A click depends on the user, the item, the price, the place, and how many of the items that the user saw are
of its group; whether a conversion would follow a click on other values of these.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Chances = NDArray[np.float64]
LABELS = ("click", "conversion", "bought", "would")
"""``bought`` is the conversion of a click, missing without one; ``would`` what would follow a click."""
SCHEMA = f"""
format = "parquet"
labels = {list(LABELS)}
dense = ["price"]

[sparse]
user = "integer"
place = "integer"
item = "integer"
seen = {{ kind = "integer", list = true, table = "item" }}
"""
LONGEST = 12
"""Elements of the longest history."""


def draw_log(num_samples: int, seed: int = 0) -> tuple[pl.DataFrame, dict[str, Chances]]:
    """Draw impressions; return them with the chances of a click, and of a conversion after it."""
    rng = np.random.default_rng(seed)
    sizes = {"users": 2000, "items": 1000, "groups": 40, "places": 10}
    users = {name: rng.normal(0, 1, sizes["users"]) for name in ("click", "would")}
    items = {name: rng.normal(0, 1, sizes["items"]) for name in ("click", "would")}
    user_N = np.minimum(rng.zipf(1.3, num_samples) - 1, sizes["users"] - 1)
    place_N = rng.integers(0, sizes["places"], num_samples)
    price_N = rng.integers(1, 100, num_samples)
    # Three groups interest a user now; most of what was seen is of them, and a third of what is shown. Item i
    # is of group i modulo their number.
    groups, per_group = sizes["groups"], sizes["items"] // sizes["groups"]
    interests_N3 = rng.integers(0, groups, (num_samples, 3))
    pick_NT = rng.integers(0, 3, (num_samples, LONGEST + 1))
    of_interest_NT = np.take_along_axis(interests_N3, pick_NT, axis=1)
    of_interest_NT += groups * rng.integers(0, per_group, of_interest_NT.shape)
    any_NT = np.minimum(rng.zipf(1.2, of_interest_NT.shape) - 1, sizes["items"] - 1)
    is_of_interest_NT = rng.random(of_interest_NT.shape) < np.append(np.full(LONGEST, 0.8), 1 / 3)
    items_NT = np.where(is_of_interest_NT, of_interest_NT, any_NT)
    seen_NT, item_N = items_NT[:, :LONGEST], items_NT[:, LONGEST]
    length_N = rng.integers(0, LONGEST + 1, num_samples)
    is_alike_NT = seen_NT % groups == item_N[:, None] % groups
    alike_N = (is_alike_NT & (np.arange(LONGEST) < length_N[:, None])).sum(1)
    cheap_N = 1 - price_N / 50
    like_N, place_click = np.log1p(alike_N), rng.normal(0, 0.3, sizes["places"])
    click_N = -3.6 + 0.5 * users["click"][user_N] + 0.6 * items["click"][item_N] + place_click[place_N]
    click_N += 1.1 * like_N + 0.5 * cheap_N
    would_N = -1.8 + 0.8 * users["would"][user_N] + 0.8 * items["would"][item_N]
    would_N += 0.4 * like_N + 0.8 * cheap_N
    chances = {"click": _sigmoid(click_N), "would": _sigmoid(would_N)}
    is_click_N = rng.random(num_samples) < chances["click"]
    would_follow_N = rng.random(num_samples) < chances["would"]
    frame = pl.DataFrame(
        {
            "click": is_click_N.astype(int),
            "conversion": (is_click_N & would_follow_N).astype(int),
            "bought": [
                int(own) if click else None for click, own in zip(is_click_N, would_follow_N, strict=True)
            ],
            "would": would_follow_N.astype(int),
            "price": price_N,
            "user": user_N,
            "place": place_N,
            "item": item_N,
            "seen": [row[:length].tolist() for row, length in zip(seen_NT, length_N, strict=True)],
        }
    )
    return frame, chances


def _sigmoid(logit_N: Chances) -> Chances:
    found: Chances = 1 / (1 + np.exp(-logit_N))
    return found

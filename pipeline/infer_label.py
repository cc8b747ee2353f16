"""Infer the label of a log, by names of columns and their values, and the columns that know it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .infer_column import InferredColumn
from .infer_times import texts_of
from .raw.column_values import read_column
from .raw.text_fields import BAD, GOOD, Spans
from .schema.schema import Form, quoted

_WORDS = (
    {"label", "labels", "target", "y"},
    {"click", "clicked", "clicks", "clk", "isclick"},
    {"conversion", "conversions", "converted", "cvr", "install", "installed", "download"},
    {"purchase", "purchased", "buy", "bought", "ordered"},
    {"like", "liked", "follow", "income", "churn", "response"},
    {"rating", "ratings", "stars", "score"},
)
"""Words that name a label, the most telling ones first. A log of clicks and conversions predicts clicks."""
_RATINGS = len(_WORDS) - 1
_HELPERS = {"is", "has", "num", "n", "count", "cnt", "total", "user", "float", "token"}
"""Words that may be added to one of these without another meaning."""
_POSITIVE = {"true", "t", "yes", "y", "1", "+1", "positive", "pos", "click", "clicked", "buy", "converted"}
_MOST_VALUES = 21
"""Distinct values that a rating or a count of clicks may have."""
_SHOWN_NAMES = 8
_LOG_CHANCE = float(np.log(1e-6))
"""Logarithm of the probability below which a relation to the label is no chance."""


@dataclass(frozen=True, slots=True)
class InferredLabel:
    """The label of a log, or a column that could be it."""

    name: str | None
    """Its column; None where no column has a name of labels, and the log has names."""
    rank: int | None = None
    """How much the name says that the column is the label, 0 most; None where it does not."""
    above: float | None = None
    """Number above which its values are 1."""
    positive: tuple[str, ...] = ()
    """Texts among its values that are 1."""
    is_clear: bool = True
    """Whether it is clear which of its values are 1."""
    notes: tuple[str, ...] = ()
    """What a reader of the proposal has to decide or to know."""
    others: tuple[str, ...] = ()
    """Other columns of two values that could be a label."""
    named: tuple[str, ...] = ()
    """Those that are called like labels."""


def infer_label(
    inferred: Sequence[InferredColumn], columns: Sequence[tuple[str, Any]], *, has_names: bool = True
) -> InferredLabel:
    """Return the label: a column of two values, ratings or counts whose name says so."""
    values = dict(columns)
    candidates = [
        each for each in (_candidate_of(column, values[column.name]) for column in inferred) if each
    ]
    named = [each for each in candidates if each.rank is not None]
    named.sort(key=lambda each: (each.rank, not _is_plain(str(each.name))))
    others = tuple(str(each.name) for each in candidates if each.rank is None)
    choice = named or [each for each in candidates if each.is_clear and not has_names]
    if not choice:
        return InferredLabel(None, notes=_nothing_chosen(others, inferred), others=others)
    chosen = choice[0]
    rivals = tuple(str(each.name) for each in candidates if each is not chosen)
    other_names = tuple(str(each.name) for each in named[1:])
    notes = []
    if not named:
        so_are = f"; so are {_listed(rivals)}" if rivals else ""
        notes.append(f"The label is a guess: {chosen.name} is the first column of zeros and ones{so_are}.")
    elif other_names:
        called = _listed(other_names)
        notes.append(f"The label is {chosen.name!r}. Called like labels as well, so left out: {called}.")
        plain = [str(each.name) for each in named if each.above is None and not each.positive]
        if chosen.name in plain[:1] and plain[1:]:
            kept = ", ".join(map(quoted, plain))
            notes.append(f"To keep labels beside it, write labels = [{kept}] in place of label.")
    elif chosen.rank and not _is_plain(str(chosen.name)) and others:
        notes.append(f"The label is {chosen.name!r} by a word of its name. Or is it {_listed(rivals)}?")
    notes += chosen.notes
    if next(column for column in inferred if column.name == chosen.name).num_distinct == 1:
        notes.append(f"All values of {chosen.name!r} are the same: nothing can be learned from these rows.")
    return replace(chosen, notes=tuple(notes), others=rivals, named=other_names)


def _listed(names: Sequence[str]) -> str:
    more = [] if len(names) <= _SHOWN_NAMES else [f"{len(names) - _SHOWN_NAMES} more"]
    return ", ".join([*map(repr, names[:_SHOWN_NAMES]), *more])


def _nothing_chosen(others: Sequence[str], inferred: Sequence[InferredColumn]) -> tuple[str, ...]:
    note = "No column of zeros and ones looks like a label: statistics only, or write label = ..."
    if others:
        note = (
            f"No column is called as labels are. It could be {_listed(others)}. Write label = ... for one of "
            "them, and take it out below; without a label there are statistics only."
        )
    mixed = [
        f"{column.name!r} is called like a label, but has {column.num_distinct:,} distinct values, among "
        "them text. A footer, or a word for a missing value?"
        for column in inferred
        if column.num_distinct > 2
        and (column.kind, column.lists) == ("text", None)
        and _is_plain(column.name)
    ]
    return note, *mixed


def _words_of(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()))


def _rank_of(name: str) -> int | None:
    """Return the number of the first of _WORDS of which a name has one."""
    words = _words_of(name)
    if not _is_plain(name):
        words -= {"y"}  # of a place, such as pos_y
    return next((rank for rank, known in enumerate(_WORDS) if words & known), None)


def _is_plain(name: str) -> bool:
    """Return whether a name has no other words than those of labels."""
    return _words_of(name) <= set.union(_HELPERS, *_WORDS)


def names_a_label(name: str) -> bool:
    """Return whether a name is that of a label, and of nothing else."""
    return _is_plain(name) and _rank_of(name) is not None


def _candidate_of(column: InferredColumn, values: Any) -> InferredLabel | None:
    """Return a column as a label, None where it cannot be one."""
    if not column.num_distinct or column.lists is not None or column.times is not None:
        return None
    # A column of zeros alone needs a name, as does one of other values than zeros and ones.
    rank, is_plain = _rank_of(column.name), names_a_label(column.name)
    if column.num_distinct > (_MOST_VALUES if is_plain else 2) or (column.num_missing and not is_plain):
        return None
    if column.num_distinct == 1 and rank is None:
        return None
    plain = InferredLabel(column.name, rank)
    if column.num_missing:
        note = f"{column.num_missing:,} rows have no {column.name}: preprocess refuses or skips them."
        plain = replace(plain, notes=(note,))
    is_read = isinstance(values, Spans) or column.kind in ("integer", "unsigned")
    if is_read and not (read_column(values, "label").states == BAD).any():
        return plain
    return _with_rule(plain, Counter(filter(None, texts_of(values))), is_plain=is_plain)


def _with_rule(plain: InferredLabel, counts: Counter[str], *, is_plain: bool) -> InferredLabel | None:
    """Return a label that says which of its values are 1; None where none are."""
    try:
        numbers = sorted({float(text) for text in counts})
    except ValueError:
        numbers = []
    if not np.isfinite(numbers).all():
        return None
    if len(numbers) == 2 and (numbers in ([-1, 1], [0, 1]) or plain.rank is not None):
        return replace(plain, above=sum(numbers) / 2)
    if not numbers and len(counts) == 2:
        said = tuple(text for text in counts if text.strip().lower() in _POSITIVE)
        if len(said) == 1:
            return replace(plain, positive=said)
        rare = min(counts, key=lambda text: counts[text])
        of = _listed(sorted(counts))
        guess = f"Which value of {plain.name!r} means 1 is a guess: the rarer one of {of}."
        rank = plain.rank if is_plain else None
        notes = (*plain.notes, guess)
        return replace(plain, rank=rank, positive=(rare,), notes=notes, is_clear=False)
    if not is_plain or len(numbers) < 3 or numbers[0] < 0:
        return None
    # Ratings above three fifths of the scale, such as 4 and 5 of 5; of counts all but 0.
    is_scale = plain.rank == _RATINGS or numbers[0] > 0
    above = float(np.floor(0.6 * numbers[-1])) if is_scale else 0.0
    guess = f"Values of {plain.name!r} from {numbers[0]:g} to {numbers[-1]:g} are 1 above {above:g}: a guess."
    return replace(plain, above=above, notes=(*plain.notes, guess))


def is_positive(label: InferredLabel, values: Any) -> NDArray[np.bool_]:
    """Return whether the label is 1 in each row, (num_rows,)."""
    form = Form(positive=label.positive, above=label.above)
    found: NDArray[np.bool_] = read_column(values, "label", form).values != 0
    return found


def follows_label(
    column: InferredColumn, values: Any, name: str, is_clicked: NDArray[np.bool_]
) -> str | None:
    """Return why a column knows the label: it is 1 - label, or other than 0 only where the label is 1.

    Such a column is written after the click, so a model that reads it predicts nothing.

    Args:
        column: as it was inferred.
        values: its values: as `plain` gives them.
        name: of the label.
        is_clicked: (num_rows,); whether the label is 1.
    """
    if column.lists or column.times or column.kind not in ("integer", "unsigned", "float"):
        return None
    found = read_column(values, column.kind)
    is_there = (found.states == GOOD) & (found.values != 0)
    if bool((is_there != is_clicked).all()) and column.num_distinct == 2:
        return f"it is 1 - {name} in every row"
    # By chance, so many rows would all be clicked with this probability.
    share = float(is_clicked.mean())
    is_chance = share == 0 or int(is_there.sum()) * np.log(share) > _LOG_CHANCE
    if bool((is_there & ~is_clicked).any()) or is_chance:
        return None
    return f"it is 0 wherever {name} is 0"

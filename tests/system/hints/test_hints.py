"""Every hint in the code is followed by a case in this folder."""

from __future__ import annotations

from collections import Counter

from hotset.tests.support.hints import claimed, places


def test_every_hint_is_followed_by_a_case() -> None:
    found = claimed()
    lacking = {place.name for place in places().values() if place.needs_case} - set(found)
    assert sorted(lacking) == []
    assert sorted(set(found) - places().keys()) == []
    assert [name for name, number in Counter(found).items() if number > 1] == []

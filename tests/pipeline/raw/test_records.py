"""Records of text: fields against a naive twin, and cuts that do not depend on where blocks end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.pipeline.raw.records import RecordCuts, find_records
from hotset.tests.fuzz.fuzz_text import GuardedText, check_fields, dialect_of_marks
from hotset.tests.support.logs.text_with_marks import MARKS, text_of
from hotset.tests.support.naive.naive_fields import Marks, naive_records

CASES = MARKS.flatmap(lambda marks: st.tuples(st.just(marks), text_of(marks)))


@given(CASES)
@example((Marks(escape=b"\\"), b'"a\\"b",\\,c,\\N,"d\\\r\n"\n'))
@example((Marks(separator=b"::", escape=b"\\"), b"a\\:::b::::c\\\\\n"))
@example((Marks(separator=b"<>", escape=b"\\"), b"a\\<>b<>\\\\c\\<>\n"))
@example((Marks(trim=True), b' "a"" " , b c \t, "" \r\r\n  \n'))
@example((Marks(comment=b"#"), b'#"a\n\n"#b"\n#\n'))
@settings(deadline=None, max_examples=300)
def test_fields_are_those_of_the_naive_twin(case: tuple[Marks, bytes]) -> None:
    marks, text = case
    check_fields(text, marks, GuardedText())


def test_a_field_of_each_form() -> None:
    text = np.frombuffer(b'a,"b ""c""\nd",e"f\r\n\n#g,"h",\n', np.uint8).copy()
    found = find_records(text, 0, text.shape[0], dialect_of_marks(Marks()), np.array([-1, 0, 1]))
    ends = zip(found.starts.T, found.stops.T, strict=True)
    assert [[bytes(text[a:b]) for a, b in zip(*each, strict=True)] for each in ends] == [
        [b'b "c"\nd', b'e"f'],
        [b"h", b""],
    ]
    assert (found.num_fields.tolist(), found.lines.tolist()) == ([3, 3], [0, 3])


@given(CASES, st.lists(st.integers(1, 12), min_size=1, max_size=6))
@settings(deadline=None, max_examples=300)
def test_blocks_of_lines_are_cut_where_records_begin(case: tuple[Marks, bytes], sizes: list[int]) -> None:
    marks, text = case
    if not marks.quote:
        return
    wanted, broken = naive_records(text, marks)
    lines = (
        text.splitlines(keepends=True)
        if b"\r" not in text
        else [line + b"\n" for line in text.split(b"\n")[:-1]]
    )
    cuts = RecordCuts(dialect_of_marks(marks))
    blocks: list[bytes] = []
    first = 0
    while first < len(lines) and not cuts.is_lost:
        size = sizes[len(blocks) % len(sizes)]
        block = b"".join(lines[first : first + size])
        head = cuts.pass_by(np.frombuffer(block, np.uint8))
        # What goes on with a record is moved to the block where it began.
        if blocks:
            blocks[-1] += block[:head]
            blocks.append(block[head:])
        else:
            assert head == 0
            blocks.append(block)
        if head == len(block):
            blocks.pop()
        first += size
    found = [record for block in blocks for _, record in naive_records(block, marks)[0]]
    assert found == [record for _, record in wanted][: len(found)]
    assert cuts.is_lost or (len(found) == len(wanted) and cuts.is_open == (broken is not None))
    assert cuts.is_lost == (broken is not None and broken[0] == "trailing")
    if not cuts.is_lost:
        assert sum(map(len, blocks)) == len(text)


@pytest.mark.parametrize("num_lines", [0, 1, 5000])
def test_text_without_quotes_is_passed_by(num_lines: int) -> None:
    cuts = RecordCuts(dialect_of_marks(Marks()))
    assert cuts.pass_by(np.frombuffer(b"a,b'c\n" * num_lines, np.uint8)) == 0
    assert not cuts.is_open and not cuts.is_lost

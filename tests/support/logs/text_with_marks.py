"""Texts of any dialect, made of its marks and little else, so that every rule meets every other."""

from __future__ import annotations

from hypothesis import strategies as st

from hotset.tests.support.naive.naive_fields import Marks

MARKS = st.builds(
    Marks,
    separator=st.sampled_from([b",", b"\t", b"::", b"||", b", ", b"\xc2\xa6", b"\x01"]),
    quote=st.sampled_from([b'"', b'"', b"'", b""]),
    escape=st.sampled_from([b"", b"\\", b"^"]),
    comment=st.sampled_from([b"", b"#", b"//"]),
    trim=st.booleans(),
)
_ENDS = (b"\n", b"\r\n", b"\r\r\n")


def text_of(marks: Marks) -> st.SearchStrategy[bytes]:
    """Any text of the marks."""
    pieces = [mark for mark in (marks.separator, marks.quote * 2, marks.quote, marks.escape) if mark]
    pieces += [*_ENDS, b"\r", b" ", b"\t", b"a", b"bc", b"#", b"//", b":"]
    return st.lists(st.sampled_from(pieces), max_size=40).map(lambda parts: b"".join(parts) + b"\n")


def rows_of(marks: Marks) -> st.SearchStrategy[bytes]:
    """Rows of three fields, which may hold marks where they are quoted, and some other lines."""
    inner = [mark for mark in (marks.separator, marks.quote * 2, marks.escape * 2) if mark]
    inside = st.lists(st.sampled_from([*inner, b"\n", b"\r\n", b"a", b" ", b"#"]), max_size=6).map(b"".join)
    quoted = inside.map(lambda field: marks.quote + field + marks.quote) if marks.quote else st.just(b"q")
    field = st.one_of(st.sampled_from([b"", b"x", b"yy", b"\\N"]), quoted)
    row = st.lists(field, min_size=3, max_size=3).map(marks.separator.join)
    line = st.one_of(row, row, row, st.sampled_from([b"", b"x", b"# a", b"//", b"\r"]))
    return st.lists(st.tuples(line, st.sampled_from(_ENDS)).map(b"".join), max_size=12).map(b"".join)

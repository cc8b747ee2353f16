"""Checks of every manifest, checksum and invariant of a folder."""

"""Control groups of a process that are plain folders, and what the system would say of them."""

from __future__ import annotations

from pathlib import Path


def write_groups(process: Path, tree: Path, own: str, *, version: int, root: str = "/", **files: str) -> Path:
    """Make a process that is in the group ``own``, with the limits that ``files`` name; return the process.

    Args:
        process: folder for what the system says of the process.
        tree: folder at which the group ``root`` is seen.
        files: texts by path below ``tree``, with ``__`` for a slash and ``_of_`` for a point.
    """
    for name, text in files.items():
        path = tree / name.replace("__", "/").replace("_of_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    process.mkdir(parents=True, exist_ok=True)
    tree.mkdir(parents=True, exist_ok=True)
    # As Linux writes them: a space in a path is an octal number.
    point = str(tree).replace(" ", "\\040")
    kind, options = ("cgroup", "rw,memory,cpu") if version == 1 else ("cgroup2", "rw")
    (process / "mountinfo").write_text(
        "23 1 0:5 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"35 31 0:32 {root} {point} rw,relatime shared:9 master:2 - {kind} {kind} {options}\n"
    )
    controllers = "memory,cpu" if version == 1 else ""
    (process / "cgroup").write_text(f"12:freezer:/elsewhere\n4:{controllers}:{own}\n")
    return process

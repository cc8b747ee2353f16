"""Control groups of a process that are plain folders, and what the system would say of them."""

from __future__ import annotations

from pathlib import Path


def write_groups(system: Path, own: str, *, version: int, **files: str) -> Path:
    """Make a system whose process is in the group ``own``, with the limits of ``files``; return the system.

    Args:
        system: its root, a folder.
        files: texts by path below the tree of groups, with ``__`` for a slash and ``_of_`` for a point.
    """
    trees = system / "sys/fs/cgroup"
    tree = trees / "memory,cpu" if version == 1 else trees
    tree.mkdir(parents=True, exist_ok=True)
    if version == 1:
        for controller in ("memory", "cpu"):
            (trees / controller).symlink_to(tree.name)
    for name, text in files.items():
        path = tree / name.replace("__", "/").replace("_of_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (system / "proc/self").mkdir(parents=True, exist_ok=True)
    controllers = "memory,cpu" if version == 1 else ""
    (system / "proc/self/cgroup").write_text(f"12:freezer:/elsewhere\n4:{controllers}:{own}\n")
    return system

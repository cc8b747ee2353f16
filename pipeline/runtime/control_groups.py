"""The control groups of this process: what a container or an administrator limits it to.

Linux shows groups as folders: in version 1 a tree for each controller, in version 2 one for all. The limit of
a group binds the groups inside it, too, so a process is bound by its own group and by those around it. A
container usually sees its own group as the outermost one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space or the like in a path of the list of mounts."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group that limits this process."""

    folder: Path
    version: int
    """1 or 2, of the system's control groups."""

    def read(self, name: str) -> str:
        """Return the text of a file of the group, empty where it has no such file."""
        try:
            return (self.folder / name).read_text().strip()
        except (OSError, ValueError):
            return ""

    def numbers(self, name: str) -> dict[str, int]:
        """Return the numbers of a file of the group by the word before each; empty where there is no file."""
        lines = [line.split() for line in self.read(name).splitlines()]
        return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}


def control_groups(controller: str, process: Path = Path("/proc/self")) -> list[ControlGroup]:
    """Return the groups that may limit a process, its own before those around it; none on other systems.

    Args:
        controller: ``memory`` or ``cpu``.
        process: folder in which the system describes the process.
    """
    try:
        own = dict(_groups_of(process))
        mounts = list(_mounts_of(process))
    except (OSError, ValueError):  # no Linux, or one that shows this to nobody
        return []
    # A system may have both versions: then only one of them has the controller's files.
    found = []
    for mount in mounts:
        name = controller if mount.version == 1 else ""
        if name in own and (mount.version == 2 or controller in mount.controllers):
            found += [ControlGroup(folder, mount.version) for folder in mount.folders_of(own[name])]
    return found


@dataclass(frozen=True, slots=True)
class _Mount:
    """A place where a tree of groups, or a part of one, can be seen."""

    point: Path
    root: str
    """The group that is seen there, by its path in the tree."""
    version: int
    controllers: tuple[str, ...]
    """Those of a tree of version 1, among other words."""

    def folders_of(self, group: str) -> Iterator[Path]:
        """Yield the folder of a group, and those around it as far as they are seen."""
        path = PurePosixPath(group)
        # A container without a namespace of its own has the path on the host, which it may not see.
        is_below = path.is_relative_to(self.root)
        relative = path.relative_to(self.root) if is_below else PurePosixPath()
        is_seen = ".." not in relative.parts and (self.point / relative).is_dir()
        folder = self.point / relative if is_seen else self.point
        yield folder
        while folder != self.point:
            folder = folder.parent
            yield folder


def _groups_of(process: Path) -> Iterator[tuple[str, str]]:
    """Yield each controller with the path of its group; that of version 2 is empty."""
    for line in (process / "cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts_of(process: Path) -> Iterator[_Mount]:
    """Yield the mounts of control groups; see "mountinfo" in proc(5)."""
    for line in (process / "mountinfo").read_text(errors="surrogateescape").splitlines():
        left, separator, right = line.partition(" - ")
        words = right.split()
        if not separator or len(words) < 3 or words[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), part) for part in left.split()[3:5])
        yield _Mount(Path(point), root, 1 if words[0] == "cgroup" else 2, tuple(words[-1].split(",")))

"""Everything a user can mend is one of these; anything else that is raised is a bug.

    HotsetError            (a ValueError, so that library users may catch either)
    ├── ConfigError        an option or config field that makes no sense
    ├── InputError         a raw log that cannot be read: which file, line, column
    ├── ManifestError      a stage folder that is missing, unfinished, stale or damaged
    ├── ShardError         shards a trainer cannot use
    ├── EngineError        workers elsewhere that cannot be had or do not stay alive
    └── MissingExtraError  an optional package that is not installed

Each carries a message of one line and, where there is something to do, a hint.
"""


class HotsetError(ValueError):
    """What was found, where, and what was wanted; ``hint`` says what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(HotsetError):
    """An option or config field that makes no sense."""


class InputError(HotsetError):
    """A raw log that cannot be read."""


class ManifestError(HotsetError):
    """A stage folder that is missing, unfinished, stale or damaged."""


class ShardError(HotsetError):
    """Shards a trainer cannot use."""


class EngineError(HotsetError):
    """Workers elsewhere that cannot be had or do not stay alive."""


class MissingExtraError(HotsetError):
    """An optional package that is not installed."""

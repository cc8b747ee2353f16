"""Ctrl-C and SIGTERM during training: the step at hand is finished first, so that it can be saved.

The first signal is only noted, and the loop asks for it after every step. The second one takes effect where
it arrives, as if there were no handler. Only the main thread of a program may handle signals; elsewhere they
are left to it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was interrupted, and its steps so far are saved as far as that was possible."""


class Interrupts:
    """The signals that have arrived so far."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that arrived; None where there was none."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals inside the block instead of obeying them at once."""
        # Python delivers signals to the main thread alone; a run in another one is not interrupted.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in _SIGNALS}
        # A program that ignores a signal goes on doing so (nohup, a shell's background job).
        handled = [each for each in _SIGNALS if before[each] not in (signal.SIG_IGN, None)]

        # The second signal is obeyed at once: whoever sends it does not want to wait for a checkpoint.
        def note(number: int, frame: FrameType | None) -> None:
            self.number = number
            for each in handled:
                signal.signal(each, before[each])

        for each in handled:
            signal.signal(each, note)
        try:
            yield
        finally:
            for each in handled:
                signal.signal(each, before[each])

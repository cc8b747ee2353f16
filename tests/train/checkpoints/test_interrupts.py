"""Signals are noted during training, and obeyed at once the second time."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hotset.train.checkpoints.interrupts import Interrupts


def test_the_first_signal_is_noted_and_the_second_obeyed() -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def work() -> None:
        with Interrupts().noted():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        with interrupts.noted():
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.number is None
    finally:
        signal.signal(signal.SIGTERM, before)

"""Ctrl-C, once and twice."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trainctl.apply.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_finishes_and_twice_stops(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    lines: list[str] = []
    with Interrupt(lines.append) as interrupt:
        os.kill(os.getpid(), number)
        assert (interrupt.stopping.wait(10), interrupt.cancelled.is_set()) == (True, False)
        os.kill(os.getpid(), number)
        assert interrupt.cancelled.wait(10)
    assert [text.partition(" ")[0] for text in lines] == ["Finishing", "Stopping."]
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("hangs_up")
def test_a_closed_terminal_is_told_more_than_once_and_only_finishes() -> None:
    """The kernel and the shell both say so; neither is a second Ctrl-C."""
    lines: list[str] = []
    with Interrupt(lines.append) as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupt.stopping.wait(10)
        os.kill(os.getpid(), signal.SIGHUP)
    assert (len(lines), interrupt.cancelled.is_set()) == (1, False)


def test_who_ignores_that_a_terminal_is_closed_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupt.stopping.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_thread_that_is_interrupted_says_nothing() -> None:
    """It may be in the middle of a write to the very stream on which it is said, which can't be written to twice."""
    threads: list[threading.Thread] = []
    with Interrupt(lambda _: threads.append(threading.current_thread())) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.stopping.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
    assert len(threads) == 2
    assert threading.main_thread() not in threads

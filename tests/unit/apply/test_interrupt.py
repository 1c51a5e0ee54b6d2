"""Ctrl-C, once and twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl.apply.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_finishes_and_twice_stops(number: signal.Signals) -> None:
    """Each is said; afterwards signals mean what they meant before."""
    before = signal.getsignal(number)
    told: list[str] = []
    with Interrupt(told.append) as interrupt:
        os.kill(os.getpid(), number)
        assert (interrupt.stopping.wait(10), interrupt.cancelled.is_set()) == (True, False)
        os.kill(os.getpid(), number)
        assert interrupt.cancelled.wait(10)
    assert [text.partition(" ")[0] for text in told] == ["Finishing", "Stopping."]
    assert signal.getsignal(number) is before


def test_while_only_watching_once_is_enough() -> None:
    """There is nothing to finish, and nothing to say."""
    told: list[str] = []
    with Interrupt(told.append) as interrupt:
        interrupt.only_watching()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.stopping.wait(10)
    assert told == []


def test_a_signal_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """Signals that arrive while the main thread writes to the very stream are told there all the same."""
    program = """
import os, signal, sys, threading
from trainctl.apply.interrupt import Interrupt
me = threading.main_thread().ident
with Interrupt(lambda text: print(text, file=sys.stderr, flush=True)) as interrupt:
    sender = threading.Thread(target=lambda: [signal.pthread_kill(me, signal.SIGINT) for _ in range(500)])
    sender.start()
    while sender.is_alive():
        print("x" * 1000, file=sys.stderr, flush=True)
    assert interrupt.cancelled.wait(10)
"""
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run([sys.executable, "-c", program], stderr=said, timeout=60)
    text = (tmp_path / "said").read_text()

    assert done.returncode == 0, text[-2000:]
    assert "Finishing" in text
    assert "Stopping." in text


def test_giving_up_for_another_reason_is_said_once() -> None:
    """It stops everything, and the first cause is the one that is told."""
    told: list[str] = []
    interrupt = Interrupt(told.append)
    interrupt.cancel("the lease was lost")
    interrupt.cancel("something else")
    assert interrupt.stopping.is_set()
    assert interrupt.cause == "the lease was lost"
    assert told == ["Stopping: the lease was lost."]

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from trainctl.base.exclusive import holder_name, lease


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    """Threads that take the lease are inside one after another, and leave nothing."""
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with lease(tmp_path / "x.lease", threading.Event()) as held:
            assert held
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5
    assert list(tmp_path.iterdir()) == []


def test_waiting_ends_when_it_is_done_or_cancelled(tmp_path: Path) -> None:
    """Who waits for a held lease goes on without it when the work is done, or when told to stop."""
    place = tmp_path / "x.lease"
    with lease(place, threading.Event()):
        with lease(place, threading.Event(), done=lambda: True) as held:
            assert not held
        cancelled = threading.Event()
        cancelled.set()
        with lease(place, cancelled) as held:
            assert not held
    assert not place.exists()


def test_a_dead_holders_lease_is_taken_at_once(tmp_path: Path) -> None:
    """Nobody waits for a process that is known to be dead."""
    boot, _, _ = holder_name().rsplit("-", 2)
    (tmp_path / "x.lease").write_text(f"tmp.{boot}-1-1.abcd")
    with lease(tmp_path / "x.lease", threading.Event(), stale_seconds=3600) as held:
        assert held


def test_a_silent_stranger_is_waited_for_by_ones_own_clock(tmp_path: Path) -> None:
    """A lease of another machine, however old or far in the future its time is, is taken only after its silence was watched."""
    place = tmp_path / "x.lease"
    place.write_text("tmp.elsewhere.1-2-3.abcd")
    for stamp in (0, 2**40):
        os.utime(place, (stamp, stamp))
        began = time.monotonic()
        with lease(place, threading.Event(), stale_seconds=0.3) as held:
            assert held
            assert time.monotonic() - began > 0.3
        place.write_text("tmp.elsewhere.1-2-3.abcd")

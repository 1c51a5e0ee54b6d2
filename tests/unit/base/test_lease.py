"""When holders of leases count as dead, by a clock that only the test moves."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from tests.support.storage.ledgers import FakeClock
from trainctl.base import lease
from trainctl.base.lease import (
    STALE_SECONDS,
    FileLease,
    Liveness,
    holder_name,
    is_process_alive,
    is_process_dead,
    remove_stale_leases,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_holders_name_tells_whether_it_runs() -> None:
    mine = holder_name()
    place, pid, _ = mine.split("-")
    assert re.fullmatch(r"[\w.-]{1,120}", mine)
    assert int(pid) == os.getpid()
    assert is_process_alive(mine)
    assert not is_process_dead(mine)
    reused = f"{place}-{pid}-1"
    assert is_process_dead(reused)
    assert not is_process_alive(reused)


@pytest.mark.parametrize("name", ["", "nonsense", "a.b-1-1", "a.b-c-d", "a-1-1", "--"])
def test_a_holder_elsewhere_is_neither_dead_nor_alive(name: str) -> None:
    assert not is_process_dead(name)
    assert not is_process_alive(name)


def test_a_slow_read_does_not_count_as_silence(clock: FakeClock) -> None:
    """A sign that was read from when the clock was at ``read_at`` may have changed since."""
    liveness = Liveness(clock.now)
    liveness.is_stale("a", 1)
    began = clock.at
    clock.at += STALE_SECONDS
    assert not liveness.is_stale("a", 1, read_at=began)
    assert liveness.is_stale("a", 1, read_at=clock.at)


def dead_holder() -> str:
    place, pid, _ = holder_name().split("-")
    return f"{place}-{pid}-1.nonce"


@pytest.mark.parametrize("renewed", [True, False])
def test_one_holds_a_lease_at_a_time(tmp_path: Path, renewed: bool) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with FileLease(tmp_path / "x.lock", renewed=renewed):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_is_held_is_not_taken(tmp_path: Path) -> None:
    """However long its file is unchanged, as the holder's process certainly runs."""
    held, clock = FileLease(tmp_path / "x.lock"), FakeClock()
    other = FileLease(tmp_path / "x.lock", liveness=Liveness(clock.now))
    assert held.try_acquire()
    assert not other.try_acquire()
    clock.at += 2 * STALE_SECONDS
    assert not other.try_acquire()
    other.release()
    held.release()
    assert other.try_acquire()
    other.release()


def test_the_lease_of_a_dead_process_is_taken_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(dead_holder())
    held = FileLease(tmp_path / "x.lock")
    assert held.try_acquire()
    held.release()


def test_a_holder_on_another_machine_is_watched(tmp_path: Path, clock: FakeClock) -> None:
    """Whatever its file's time is, it counts as dead only after nothing of it changed for long."""
    path = tmp_path / "x.lock"
    path.write_text("elsewhere.1-2-3.nonce")
    os.utime(path, (0, 0))
    waiting = FileLease(path, liveness=Liveness(clock.now))
    assert not waiting.try_acquire()
    clock.at += STALE_SECONDS - 1
    assert not waiting.try_acquire()
    os.utime(path, (1, 1))  # it was renewed
    clock.at += STALE_SECONDS - 1
    assert not waiting.try_acquire()
    clock.at += STALE_SECONDS
    assert waiting.try_acquire()
    waiting.release()


def test_a_held_lease_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(os, "utime", lambda *_, **__: renewed.set())
    with FileLease(tmp_path / "x.lock", renewed=True):
        assert renewed.wait(10)


def test_only_the_leases_of_dead_processes_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "dead.lock").write_text(dead_holder())
    (tmp_path / "other").write_text(dead_holder())
    with FileLease(tmp_path / "held.lock"):
        remove_stale_leases(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"held.lock", "other"}

"""Writers that are killed, and writers of several processes at once: real processes, a real directory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.storage.ledgers import ledger_on
from tests.support.storage.log_faults import FaultyStore, StoreFault, StoreFaults
from trainctl.errors import StateError
from trainctl.ledger.ledger import Ledger
from trainctl.plugin_api.state import StateLog
from trainctl_state import directory_objects, open_directory
from trainctl_state.log import ObjectLog

WRITER = """
import sys, uuid
from trainctl.errors import AppendConflict
from trainctl_state import open_directory
log, name, count = open_directory(sys.argv[1]), sys.argv[2], int(sys.argv[3])
position = log.read().next
print("ready", flush=True)
for number in range(count):
    while True:
        try:
            log.append(position, [{"id": str(uuid.uuid4()), "text": f"{name}:{number}", "pad": "x" * 3000}])
            break
        except AppendConflict:
            position = log.read(position).next
    position += 1
    print(position, number, flush=True)
    if position % 7 == 0:
        log.snapshot(position, {"at": position})
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, url, name, str(count)], stdout=subprocess.PIPE, text=True
    )


def texts(log: StateLog, name: str) -> list[str]:
    return [str(row["text"]) for row in log.replay() if str(row["text"]).startswith(f"{name}:")]


def test_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    running = [writer(url, f"w{number}", 30) for number in range(4)]
    for process in running:
        process.communicate(timeout=120)
        assert process.returncode == 0
    log = open_directory(url)
    for number in range(4):
        assert texts(log, f"w{number}") == [f"w{number}:{turn}" for turn in range(30)]
    assert log.read().next == 120


@pytest.mark.parametrize("rounds", [5, pytest.param(40, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_a_readable_log(tmp_path: Path, rounds: int) -> None:
    url, chance, confirmed = tmp_path.as_uri(), random.Random(1), 0
    for turn in range(rounds):
        process = writer(url, f"w{turn}", 100_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.06))
        process.kill()
        words = [
            line.split()
            for line in process.stdout.read().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        process.stdout.close()
        process.wait()
        confirmed = max(confirmed, *(int(position) for position, _ in words), 0)
        data = open_directory(url).read()
        assert data.next >= confirmed
        written = texts(open_directory(url), f"w{turn}")
        assert written == [f"w{turn}:{number}" for number in range(len(written))]
        assert len(written) >= len(words)
    assert len(list(open_directory(url).replay())) == open_directory(url).read().next


def notes(ledger: Ledger, log: StateLog, count: int) -> None:
    """Appends with a snapshot after every second one, so that packing and emptying happen too."""
    for number in range(count):
        position = ledger.state().position
        ledger.note(str(number))
        if number % 2:
            log.snapshot(
                position + 1,
                {
                    "version": 1,
                    "lineage": ledger.state().lineage,
                    "serial": 0,
                    "position": position + 1,
                    "resources": [],
                },
            )


@pytest.mark.parametrize("fault", [StoreFault.DIE, StoreFault.DIE_AFTER])
def test_killed_at_every_write(tmp_path: Path, fault: StoreFault) -> None:
    """Killed before and after each single write of appending, snapshotting, packing and emptying, in turn: the next process goes on."""
    for at in range(1, 40):
        path = tmp_path / str(at)
        child = os.fork()
        if child == 0:
            faults = StoreFaults({at: fault})
            log = ObjectLog(FaultyStore(directory_objects(path), faults), path.as_uri())
            notes(ledger_on(log), log, 6)
            os._exit(3)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 3
            assert at > 12, "this many writes there are at least"
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        left = open_directory(path.as_uri())
        before = [entry.get("text") for entry in left.replay()]
        assert before == [None, *(str(n) for n in range(len(before) - 1))][: len(before)]
        notes(ledger_on(left), left, 4)
        after = [entry.get("text") for entry in open_directory(path.as_uri()).replay()]
        assert after == (before or [None]) + [str(n) for n in range(4)]
    else:
        pytest.fail("there are more writes than were tried")


def test_an_unwritable_log_is_never_an_empty_one(tmp_path: Path) -> None:
    faults = StoreFaults(always=StoreFault.FAIL)
    ledger = ledger_on(ObjectLog(FaultyStore(directory_objects(tmp_path), faults, reads=True), "x"))
    with pytest.raises(StateError, match="planted"):
        ledger.state()
    with pytest.raises(StateError, match="planted"):
        ledger.note("x")

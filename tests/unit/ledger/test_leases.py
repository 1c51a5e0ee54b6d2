"""Leases on addresses, and the authors of entries."""

from __future__ import annotations

import getpass
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import SFT, FakeClock, begin, elsewhere, ledger_on, record
from tests.support.storage.log_faults import FaultyLog, StoreFault, StoreFaults
from trainctl.errors import LockHeld
from trainctl.ledger import leases
from trainctl.ledger.leases import EntryAuthor, entry_author
from trainctl.ledger.ledger import LeaseRenewer


def renewals(log: MemoryLog) -> int:
    return sum(entry["type"] == "lease_renewed" for entry in log.replay())


def test_all_leases_are_renewed_in_one_append() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.renew()
    assert log.read().next == 0
    intents = [begin(ledger), begin(ledger, address=type(SFT)(SFT.kind, "other"))]
    before = log.read().next
    ledger.renew()
    assert log.read().next == before + 1
    assert sorted(list(log.replay())[-1]["intents"]) == sorted(intent.id for intent in intents)  # type: ignore[type-var,arg-type]


def test_the_keeper_renews_while_it_is_entered() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    begin(ledger)
    with LeaseRenewer(ledger, lambda: None, interval=0.01):
        while renewals(log) < 3:
            threading.Event().wait(0.01)
    threading.Event().wait(0.05)
    after = renewals(log)
    threading.Event().wait(0.1)
    assert renewals(log) == after >= 3


def test_a_holder_that_can_not_renew_is_told() -> None:
    """Once for a lease, when its whole length has passed since the append that last renewed it began."""
    clock, messages = FakeClock(), []
    ledger = ledger_on(MemoryLog(), clock)
    begin(ledger)
    keeper = LeaseRenewer(ledger, lambda: messages.append(clock.at))
    clock.at += 29
    keeper.check()
    assert messages == []
    ledger.renew()
    clock.at += 29
    keeper.check()
    assert messages == []
    clock.at += 1
    keeper.check()
    keeper.check()
    assert messages == [1059.0]


def test_it_is_told_while_an_append_hangs() -> None:
    """A dead disk holds the renewing thread; the looking thread still sees the clock."""
    clock, lost = FakeClock(), threading.Event()
    faults = StoreFaults({2: StoreFault.STALL})
    ledger = ledger_on(FaultyLog(MemoryLog(), faults), clock)
    begin(ledger)
    with LeaseRenewer(ledger, lost.set, interval=0.01):
        assert faults.stalled.wait(10)
        clock.at += 31
        assert lost.wait(10)
        faults.release()


def test_it_is_told_when_another_took_over() -> None:
    log, lost = MemoryLog(), threading.Event()
    ledger = ledger_on(log)
    intent = begin(ledger)
    ledger_on(log, holder=elsewhere()).release(intent.id)
    with LeaseRenewer(ledger, lost.set, interval=0.01):
        assert lost.wait(10)
    with pytest.raises(LockHeld):
        ledger.finish(intent, record())


def test_a_watcher_never_takes_over_before_the_holder_knows() -> None:
    """At the moment a watcher may take the lease, the holder, counting from before its renewal, has been told."""
    log, clock, messages = MemoryLog(), FakeClock(), []
    holder, watcher = ledger_on(log, clock, elsewhere()), ledger_on(log, clock)
    begin(holder)
    keeper = LeaseRenewer(holder, lambda: messages.append(clock.at))
    taken = False
    while not taken:
        try:
            begin(watcher)
            taken = True
        except LockHeld:
            clock.at += 0.5
            keeper.check()
    assert messages


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_ACTOR": "ann",
    "GITHUB_TRIGGERING_ACTOR": "bob",
    "GITHUB_SHA": "0" * 40,
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "o/r",
    "GITHUB_RUN_ID": "7",
}
GITLAB = {
    "GITLAB_CI": "true",
    "GITLAB_USER_LOGIN": "ann",
    "CI_SERVER_URL": "https://git.example.com:8443",
    "CI_COMMIT_SHA": "1" * 40,
    "CI_JOB_URL": "https://git.example.com:8443/o/r/-/jobs/3",
}
HERE = f"{getpass.getuser()}@{os.uname().nodename}"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, outside of any work tree."""
    monkeypatch.chdir(tmp_path)
    leases._head_commit.cache_clear()
    yield tmp_path
    leases._head_commit.cache_clear()


@pytest.mark.parametrize(
    ("environ", "author"),
    [
        ({}, EntryAuthor(HERE)),
        ({"GITHUB_ACTOR": "ann", "CI_COMMIT_SHA": "1" * 40}, EntryAuthor(HERE)),
        (
            GITHUB,
            EntryAuthor("bob@github.com", "0" * 40, "https://github.com/o/r/actions/runs/7"),
        ),
        (GITLAB, EntryAuthor("ann@git.example.com", "1" * 40, GITLAB["CI_JOB_URL"])),
        ({"GITHUB_ACTIONS": "true"}, EntryAuthor(HERE)),
    ],
)
def test_who_acts(environ: dict[str, str], author: EntryAuthor) -> None:
    """The user that started the pipeline, with commit and run; elsewhere the user of this machine."""
    assert entry_author(environ) == author


@pytest.mark.parametrize("junk", ["a\x1b[31mb", "a\nb", "a" * 257, "\u202e"])
def test_only_short_printable_values_are_taken(junk: str) -> None:
    for given in (GITHUB, GITLAB):
        spoiled = {
            name: junk if name not in ("GITHUB_ACTIONS", "GITLAB_CI") else "1" for name in given
        }
        assert entry_author(spoiled) == EntryAuthor(HERE)
    assert entry_author({**GITLAB, "CI_JOB_URL": "javascript:alert(1)"}).pipeline is None
    assert entry_author({**GITHUB, "GITHUB_SHA": "main; rm"}).commit is None


def test_outside_of_ci_the_commit_is_that_of_the_work_tree(directory: Path) -> None:
    """None before there is one; a pipeline's own commit stands before it."""

    def git(*arguments: str) -> str:
        leases._head_commit.cache_clear()
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.check_output(command, text=True).strip()

    git("init", "-q")
    assert entry_author({}).commit is None
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD")
    (directory / "jobs").mkdir()
    os.chdir(directory / "jobs")
    assert entry_author({}).commit == head
    assert entry_author(GITHUB).commit == "0" * 40
    git("pack-refs", "--all")
    assert entry_author({}).commit == head
    git("worktree", "add", "-q", "other")
    os.chdir("other")
    assert entry_author({}).commit == head
    git("checkout", "-q", "--detach")
    assert entry_author({}).commit == head

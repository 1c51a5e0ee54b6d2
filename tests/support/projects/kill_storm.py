"""A storm: many commands on one state at once, killed at random moments and started again until each got through.

Everything random comes from one seed. What the machine does meanwhile doesn't, so the same seed gives the same intentions and not the
same interleaving.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

from tests.support.projects.project import ProjectHarness
from trainctl.ledger.entries import entry_id, from_json
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import Intent
from trainctl.plugin_api.state import StateLog

LINES = 12
"""A process is killed at some line of its output up to this one,"""
PAUSE = 0.2
"""up to so many seconds after it;"""
START = 2.0
"""or up to so many seconds after its start."""
PATIENCE = 900.0
"""Seconds after which commands that don't get through are a failure."""
LOOK = 0.005

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A process that was let live, or ended before its time came."""

    command: Command
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class KillPlan:
    """When a process dies: after so many lines of output and then so many seconds; with its group or alone."""

    lines: int
    seconds: float
    is_group: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> KillPlan:
        """One half dies by the clock, the other at a step."""
        is_group = chance.random() < 0.5
        if chance.random() < 0.5:
            return cls(0, chance.uniform(0, START), is_group)
        return cls(chance.randint(1, LINES), chance.uniform(0, PAUSE), is_group)


@dataclass
class KillStorm:
    """Starts and kills; counts both, and keeps how the others ended."""

    project: ProjectHarness
    seed: int
    mortality: float = 0.8
    """The share of processes that are doomed."""
    kills: int = 0
    starts: int = 0
    ended: list[CommandResult] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_all(self, commands: Sequence[Command]) -> None:
        """Run all at once, each again and again until it ends with 0."""
        over = time.monotonic() + PATIENCE
        chances = [
            random.Random(f"{self.seed} {self.starts} {turn}") for turn in range(len(commands))
        ]
        with ThreadPoolExecutor(len(commands)) as pool:
            work = [
                pool.submit(self._persist, command, chance, over)
                for command, chance in zip(commands, chances, strict=True)
            ]
            for item in work:
                item.result()

    def _persist(self, command: Command, chance: random.Random, over: float) -> None:
        while time.monotonic() < over:
            doom = KillPlan.drawn(chance) if chance.random() < self.mortality else None
            ended = self._once(command, doom)
            with self._lock:
                self.starts += 1
                if ended is None:
                    self.kills += 1
                else:
                    self.ended.append(ended)
            if ended is not None and ended.code == 0:
                return
        raise TimeoutError(f"{' '.join(command)} did not get through: {self.ended[-3:]}")

    def _once(self, command: Command, doom: KillPlan | None) -> CommandResult | None:
        """One process; None if it was killed."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.project.start(*command, stdout=out, stderr=err)
            if doom is not None:
                _wait_for(process, doom, out)
                if process.poll() is None:
                    kill = os.killpg if doom.is_group else os.kill
                    kill(process.pid, signal.SIGKILL)
            code = process.wait(PATIENCE)
            if code == -signal.SIGKILL:
                return None
            return CommandResult(command, code, _text(out), _text(err))


def _wait_for(process: subprocess.Popen[str], doom: KillPlan, out: IO[bytes]) -> None:
    """Until its time has come, or it has ended."""
    since: float | None = time.monotonic() if doom.lines == 0 else None
    while process.poll() is None:
        if since is None and _text(out).count("\n") >= doom.lines:
            since = time.monotonic()
        if since is not None and time.monotonic() - since >= doom.seconds:
            return
        time.sleep(LOOK)


def _text(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode()


def check_log(log: StateLog, serial: int) -> StateReducer:
    """Every entry counted, none twice; the serial only grew; no address was taken from a live holder: the fold."""
    fold, seen = StateReducer(), set()
    for raw in log.replay():
        before, entry = fold.serial, from_json(raw)
        assert entry_id(entry) not in seen, raw
        seen.add(entry_id(entry))
        holding = fold.open.get(entry.address) if isinstance(entry, Intent) else None
        assert fold.apply(entry) or raw["type"] in ("comment", "refreshed"), raw
        assert fold.serial - before == (raw["type"] in ("outcome", "unlocked")), raw
        assert holding is None or holding.holder != entry.holder, raw  # type: ignore[union-attr]
    assert fold.serial == serial
    return fold

"""One job's life on fake hosts, with a fault in one phase of it; afterwards everything must recover without help."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from subprocess import Popen, TimeoutExpired
from typing import Any

from tests.support.machines.hosts import FakeHost
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

_OF_THE_ACCOUNT = (".cache", ".local", ".local/share")
"""The XDG base directories may stay, empty."""
_DATA = ".local/share/trainctl"
TRIES = 5
"""So many applies, or destroys, after everything is repaired must be enough."""
PATIENCE = 240.0
_DELAY = 0.3
"""How long a phase has begun when the fault begins."""
MANIFEST = """\
project: {name: demo}
MIRROR
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
weights: {tiny: {source: "file:./weights", mount_location: /app/models/tiny}}
jobs:
  sft:
    code: ./src
    compute: {node_count: COUNT}
    weights: [tiny]
    runtime:
      start_commands:
        - cat /app/models/tiny/word
        - mkdir $BT_CHECKPOINT_DIR/step-1 && cat /app/models/tiny/word > $BT_CHECKPOINT_DIR/step-1/model
        - while ! test -e ~/gate; do sleep 0.1; done
        - mkdir $BT_CHECKPOINT_DIR/step-2 && cat /app/models/tiny/word > $BT_CHECKPOINT_DIR/step-2/model
        - echo done
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""


@dataclass(frozen=True)
class Outage:
    """A fault of the last host, or of the operator, that begins in a phase; without ``seconds`` it lasts until the command is over."""

    phase: str
    fault: str
    hosts: int
    seconds: float | None = None
    mirror_on_host: bool = False

    def __str__(self) -> str:
        return f"{self.phase}-{self.fault}-{self.hosts}"


class OutageScenario:
    """A project of one job on some hosts, from its first apply to a destroy that leaves nothing."""

    def __init__(self, made: ProjectHarness, hosts: Sequence[FakeHost], outage: Outage) -> None:
        self._made = made
        self._hosts = hosts
        self._outage = outage
        self._fault = ExitStack()
        self._before = [(set(_files(host)), host.mounts()) for host in hosts]
        mirror = "" if outage.mirror_on_host else f'mirror: {{url: "file://{made.mirror}"}}'
        text = MANIFEST.replace("MIRROR", mirror).replace("COUNT", str(len(hosts)))
        text = text.replace("HOSTS", json.dumps([host.settings for host in hosts]))
        noise = random.Random(str(outage)).randbytes(6_000_000)  # no other test's blobs
        made.write({"trainctl.yaml": text, "src/nothing": "", "weights/word": "hello\n", "weights/noise": noise})  # fmt: skip

    def live(self) -> list[str]:
        """All of it; asserts that it comes right, and hands back what it leaves behind."""
        try:
            phase = self._outage.phase
            self._command(("apply", "--auto-approve"), phase not in ("running", "collecting", "destroying"))  # fmt: skip
            if phase == "running":
                self._settled("apply", "--auto-approve")
                self._for_a_while()
            self._open()
            if phase == "collecting":
                self._for_a_while()
            self._settled("apply", "--auto-approve", "--wait")
            self._check_run()
            self._command(("destroy", "--auto-approve", "--delete-checkpoints"), phase == "destroying")  # fmt: skip
            self._settled("destroy", "--auto-approve", "--delete-checkpoints")
            return self._left()
        finally:
            self._fault.close()
            for host in self._hosts:
                (host.home / "gate").unlink(missing_ok=True)

    def _command(self, words: Sequence[str], struck: bool) -> None:
        """A command in whose midst it may go wrong; how it ends doesn't matter, but what it says does."""
        with self._made.start(*words, "--format", "json") as process:
            told: list[dict[str, Any]] = []
            errors: list[str] = []
            readers = [
                threading.Thread(target=_read_events, args=(process, told)),
                threading.Thread(target=_read_errors, args=(process, errors)),
            ]
            for reader in readers:
                reader.start()
            if struck:
                self._await_phase(process, told)
                self._go_wrong(process)
            process.wait(PATIENCE)
            for reader in readers:
                reader.join()
        self._fault.close()
        self._check_events(told)
        assert "Traceback" not in "".join(errors), errors

    def _go_wrong(self, process: Popen[str]) -> None:
        if self._outage.fault == "operator":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return
        self._strike()
        last = PATIENCE if self._outage.seconds is None else self._outage.seconds
        with suppress(TimeoutExpired):
            process.wait(last)
        self._fault.close()

    def _await_phase(self, process: Popen[str], told: Sequence[dict[str, Any]]) -> None:
        begun = _BEGINS.get(self._outage.phase)
        if begun is not None:
            wait_for(lambda: process.poll() is not None or any(map(begun, list(told))), PATIENCE)
        time.sleep(_DELAY)

    def _for_a_while(self) -> None:
        """It goes wrong while nobody looks."""
        if self._outage.fault == "operator":
            return
        time.sleep(_DELAY)
        self._strike()
        if self._outage.seconds is not None:
            time.sleep(self._outage.seconds)
        else:
            for command in (("status", "job.sft"), ("apply", "--auto-approve")):
                errors = self._made.run(*command, code=None, seconds=PATIENCE).stderr
                assert "Traceback" not in errors, errors
        self._fault.close()

    def _strike(self) -> None:
        self._fault.enter_context(self._hosts[-1].away(self._outage.fault))

    def _open(self) -> None:
        """Let the job end."""
        for host in self._hosts:
            (host.home / "gate").touch()

    def _settled(self, *words: str) -> None:
        """The same command until it has nothing left to do, as often as is allowed."""
        said = ""
        for _ in range(TRIES):
            done = self._made.run(*words, code=None, seconds=PATIENCE)
            said = done.stdout[-2000:] + done.stderr
            assert "Traceback" not in done.stderr, done.stderr
            if done.returncode == 0:
                return
        raise AssertionError(f"{words} doesn't come right: {said}")

    def _check_run(self) -> None:
        """The newest run completed on every rank, each of which wrote what it should, once."""
        status = self._made.json("status", "job.sft")
        assert status["status"] == "TRAINING_JOB_COMPLETED", status
        count = len(self._hosts)
        assert [rank["exit_code"] for rank in status["ranks"]] == [0] * count
        for rank in range(count):
            log = self._made.run("logs", "job.sft", "--rank", str(rank)).stdout
            assert log == "hello\ndone\n", log
        kept = self._made.json("checkpoints", "list", "job.sft")["checkpoints"]
        newest = {(one["rank"], one["name"]) for one in kept if one["run"] == status["run"]}
        assert newest == {(rank, name) for rank in range(count) for name in ("step-1", "step-2")}
        assert self._made.run("plan", "--detailed-exitcode").returncode == 0

    def _left(self) -> list[str]:
        """Processes are awaited; every file and mount that was not there before, and every resource in the state."""
        left = self._made.run("state", "list").stdout.splitlines()
        for host, (files, mounts) in zip(self._hosts, self._before, strict=True):
            host.await_quiet()
            new = set(_files(host)) - {"gate", *_OF_THE_ACCOUNT} - files
            left += [f"{host.name}: {one}" for one in sorted(new)]
            left += [f"{host.name}: mounts"] if host.mounts() != mounts else []
        return left

    def _check_events(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            if event["type"] == "step_failed":
                text = f"{event['message']}\n{event.get('detail', '')}"
                assert "lab/gpu-" in text, event
                assert len(text) < 700, event


def _is_step(event: dict[str, Any], kind: str, address: str) -> bool:
    return bool(event["type"] == kind and str(event.get("address")).startswith(address))


def _delivering(event: dict[str, Any]) -> bool:
    phase = str(event.get("phase", event.get("message", "")))
    return _is_step(event, "step_progress", "job.") and phase.startswith("delivering")


_BEGINS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "install": lambda event: _is_step(event, "step_started", "cluster."),
    "mirror": lambda event: _is_step(event, "step_started", "weights."),
    "delivery": lambda event: _is_step(event, "step_started", "job.") or _delivering(event),
    "starting": lambda event: _delivering(event) and event.get("done") == event.get("total"),
    "destroying": lambda event: _is_step(event, "step_started", ""),
}


def _read_events(process: Popen[str], told: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(ValueError):
            told.append(json.loads(line))


def _read_errors(process: Popen[str], told: list[str]) -> None:
    assert process.stderr is not None
    told.append(process.stderr.read())


def _files(host: FakeHost) -> list[str]:
    """What is in the account's home, but for a mirror: that stays."""
    found = [str(path.relative_to(host.home)) for path in host.home.rglob("*")]
    mirror = f"{_DATA}/mirror"
    if mirror not in found:
        return found
    return [one for one in found if one != _DATA and not f"{one}/".startswith(f"{mirror}/")]

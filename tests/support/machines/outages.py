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
        """Live through all of it; return what is left behind."""
        try:
            phase = self._outage.phase
            apply = ("apply", "--auto-approve")
            destroy = ("destroy", "--auto-approve", "--delete-checkpoints")
            self._run(apply, phase not in ("running", "collecting", "destroying"))
            if phase == "running":
                self._repeat(*apply)
                self._break_unwatched()
            for host in self._hosts:
                (host.home / "gate").touch()
            if phase == "collecting":
                self._break_unwatched()
            self._repeat(*apply, "--wait")
            self._check_run()
            self._run(destroy, phase == "destroying")
            self._repeat(*destroy)
            return self._leftovers()
        finally:
            self._fault.close()
            for host in self._hosts:
                (host.home / "gate").unlink(missing_ok=True)

    def _run(self, command: Sequence[str], breaks: bool) -> None:
        """Run a command, during which the fault may begin; its exit code doesn't matter, but its errors do."""
        with self._made.start(*command, "--format", "json") as process:
            events: list[dict[str, Any]] = []
            errors: list[str] = []
            readers = [
                threading.Thread(target=_read_events, args=(process, events)),
                threading.Thread(target=_read_errors, args=(process, errors)),
            ]
            for reader in readers:
                reader.start()
            if breaks:
                self._break(process, events)
            process.wait(PATIENCE)
            for reader in readers:
                reader.join()
        self._fault.close()
        assert "Traceback" not in "".join(errors), errors
        for event in events:
            if event["type"] == "step_failed":
                text = f"{event['message']}\n{event.get('detail', '')}"
                assert "lab/gpu-" in text, event
                assert len(text) < 700, event

    def _break(self, process: Popen[str], events: Sequence[dict[str, Any]]) -> None:
        if begins := _BEGINS.get(self._outage.phase):
            wait_for(lambda: process.poll() is not None or any(map(begins, list(events))), PATIENCE)
        time.sleep(_DELAY)
        if self._outage.fault == "operator":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return
        with self._hosts[-1].away(self._outage.fault), suppress(TimeoutExpired):
            process.wait(self._outage.seconds or PATIENCE)

    def _break_unwatched(self) -> None:
        """Between commands, or during those of an operator who waits for nothing."""
        with self._hosts[-1].away(self._outage.fault):
            time.sleep(self._outage.seconds or 0)
            for command in (("status", "job.sft"), ("apply", "--auto-approve")):
                errors = self._made.run(*command, code=None, seconds=PATIENCE).stderr
                assert "Traceback" not in errors, errors

    def _repeat(self, *command: str) -> None:
        """Run a command until it succeeds, as often as is allowed."""
        for _ in range(TRIES):
            done = self._made.run(*command, code=None, seconds=PATIENCE)
            assert "Traceback" not in done.stderr, done.stderr
            if done.returncode == 0:
                return
        raise AssertionError(f"{command} doesn't recover: {done.stdout[-2000:]}{done.stderr}")

    def _check_run(self) -> None:
        """The newest run completed on every rank, each of which wrote its output once."""
        status = self._made.json("status", "job.sft")
        assert status["status"] == "TRAINING_JOB_COMPLETED", status
        ranks = range(len(self._hosts))
        assert [rank["exit_code"] for rank in status["ranks"]] == [0 for _ in ranks]
        for rank in ranks:
            log = self._made.run("logs", "job.sft", "--rank", str(rank)).stdout
            assert log == "hello\ndone\n", log
        rows = self._made.json("checkpoints", "list", "job.sft")["checkpoints"]
        newest = {(row["rank"], row["name"]) for row in rows if row["run"] == status["run"]}
        assert newest == {(rank, name) for rank in ranks for name in ("step-1", "step-2")}
        assert self._made.run("plan", "--detailed-exitcode").returncode == 0

    def _leftovers(self) -> list[str]:
        """Every file and mount that was not there before, and every resource in the state; processes are awaited."""
        left = self._made.run("state", "list").stdout.splitlines()
        for host, (files, mounts) in zip(self._hosts, self._before, strict=True):
            host.await_quiet()
            new = set(_files(host)) - {"gate", *_OF_THE_ACCOUNT} - files
            left += [f"{host.name}: {name}" for name in sorted(new)]
            left += [f"{host.name}: mounts"] if host.mounts() != mounts else []
        return left


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


def _read_events(process: Popen[str], events: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(ValueError):
            events.append(json.loads(line))


def _read_errors(process: Popen[str], errors: list[str]) -> None:
    assert process.stderr is not None
    errors.append(process.stderr.read())


def _files(host: FakeHost) -> list[str]:
    """What is in the account's home, but for a mirror: that stays."""
    found = [str(path.relative_to(host.home)) for path in host.home.rglob("*")]
    mirror = f"{_DATA}/mirror"
    if mirror not in found:
        return found
    return [one for one in found if one != _DATA and not f"{one}/".startswith(f"{mirror}/")]

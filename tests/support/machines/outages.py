"""One job's life on fake hosts, with a fault in one phase of it; afterwards everything must recover without help."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import TimeoutExpired

from tests.support.machines.hosts import FakeHost
from tests.support.projects.project import ProjectHarness

TRIES = 5
"""So many applies, or destroys, after everything is repaired must be enough."""
PATIENCE = 240.0
_DELAY = 0.3
"""How long a phase has begun when the fault begins."""
_OF_THE_ACCOUNT = (".cache", ".local", ".local/share")
"""The XDG base directories may stay, empty."""
_DATA = ".local/share/trainctl"
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
APPLY = ("apply", "--auto-approve")
DESTROY = ("destroy", "--auto-approve", "--delete-checkpoints")


@dataclass(frozen=True)
class Outage:
    """A fault of the last host, or a kill of the operator's command.

    ``phase`` is the kind of the resource that an apply works on, ``running``, ``collecting`` or ``destroying``; without
    ``seconds`` the fault lasts until the command is over.
    """

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
        self._before = [(set(_files(host)), host.mounts()) for host in hosts]
        mirror = "" if outage.mirror_on_host else f'mirror: {{url: "file://{made.mirror}"}}'
        text = MANIFEST.replace("MIRROR", mirror).replace("COUNT", str(len(hosts)))
        text = text.replace("HOSTS", json.dumps([host.settings for host in hosts]))
        noise = random.Random(str(outage)).randbytes(6_000_000)  # no other test's blobs
        made.write({"trainctl.yaml": text, "src/nothing": "", "weights/word": "hello\n", "weights/noise": noise})  # fmt: skip

    def live(self) -> list[str]:
        """Live through all of it; return what is left behind."""
        phase = self._outage.phase
        gates = [host.home / "gate" for host in self._hosts]
        try:
            if phase in ("cluster", "weights", "job"):
                self._interrupt(APPLY)
            self._repeat(*APPLY)
            if phase == "running":
                self._break_between_commands()
            for gate in gates:
                gate.touch()
            if phase == "collecting":
                self._break_between_commands()
            self._repeat(*APPLY, "--wait")
            self._check_run()
            if phase == "destroying":
                self._interrupt(DESTROY)
            self._repeat(*DESTROY)
            return self._leftovers()
        finally:
            for gate in gates:
                gate.unlink(missing_ok=True)

    def _interrupt(self, command: Sequence[str]) -> None:
        """Run a command during which the fault begins; its exit code doesn't matter."""
        kind = "" if self._outage.phase == "destroying" else f"{self._outage.phase}."
        with self._made.start(*command, "--format", "json") as process:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                if event["type"] == "step_started" and event["address"].startswith(kind):
                    break
            time.sleep(_DELAY)
            if self._outage.fault == "operator":
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return
            with self._hosts[-1].away(self._outage.fault), suppress(TimeoutExpired):
                process.communicate(timeout=self._outage.seconds or PATIENCE)
            _, errors = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors, errors

    def _break_between_commands(self) -> None:
        """Or while an operator inspects the run, and applies again."""
        with self._hosts[-1].away(self._outage.fault):
            time.sleep(self._outage.seconds or 0)
            for command in (("status", "job.sft"), APPLY):
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
        assert self._made.actions() == {}

    def _leftovers(self) -> list[str]:
        """Every file and mount that was not there before, and every resource in the state; processes are awaited."""
        left = self._made.run("state", "list").stdout.splitlines()
        for host, (files, mounts) in zip(self._hosts, self._before, strict=True):
            host.await_quiet()
            new = set(_files(host)) - {"gate", *_OF_THE_ACCOUNT} - files
            left += [f"{host.name}: {name}" for name in sorted(new)]
            left += [f"{host.name}: mounts"] if host.mounts() != mounts else []
        return left


def _files(host: FakeHost) -> list[str]:
    """The files in the account's home, except a mirror, which stays."""
    found = [str(path.relative_to(host.home)) for path in host.home.rglob("*")]
    mirror = f"{_DATA}/mirror"
    if mirror not in found:
        return found
    return [name for name in found if name != _DATA and not f"{name}/".startswith(f"{mirror}/")]

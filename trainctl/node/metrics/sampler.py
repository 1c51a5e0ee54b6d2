"""Samples of what a run uses, taken by a process of their own so that nothing that hangs can hold up the supervisor.

See DESIGN.md, "Logs and metrics".
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import read_json, write_atomic, write_json
from trainctl.base.protocol.runs import MetricsRequest, MetricsResponse
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.system.processes import descendants
from trainctl.base.system.syscalls import fork_child
from trainctl.node.containers.cleanup import container_processes
from trainctl.node.metrics import resource_usage
from trainctl.node.runs.record import NodeRun
from trainctl.node.system import gpus
from trainctl.node.system.layout import Layout

HISTORY_BYTES = 2**21
"""The most that one run's samples take."""

_INTERVAL = 10.0
_DISK_INTERVAL = 60.0
_COST_RATIO = 200
"""A sample that took a second of one CPU is followed by none for so many seconds, divided by the number of CPUs: 0.5 %."""
_DISK_SECONDS = 10.0
_DAY = 86400.0
_GPU_SECONDS = 5.0
_GPU_PAUSE = 600.0
_MAX_SECONDS = 30.0
_LAST_SECONDS = 2.0
_POLL_SECONDS = 0.02
_EXIT_GPU_TIMEOUT = 3

Json = Dict[str, Any]


class Sampler:
    """A chore that never waits: it starts the next sample when it is due, and collects the one before.

    Due ever more rarely at first (1, 2, 4, 8 s), then every 10 s, and always so that samples take less than 0.5 % of the machine.
    """

    def __init__(self, run: NodeRun, spec: RunSpec) -> None:
        self._run = run
        self._spec = spec
        self._child: Optional[int] = None
        self._began = self._started = time.monotonic()
        self._due = self._gpus_due = 0.0
        self._gpu_pause = _GPU_PAUSE
        self._spent = 0.0

    def __call__(self) -> None:
        """Look whether a sample has ended or is due."""
        with contextlib.suppress(OSError):
            self._collect()
            if self._child is None and time.monotonic() >= self._due:
                self._start()

    def finish(self) -> None:
        """Take the last sample, whatever the one before is at."""
        with contextlib.suppress(OSError):
            self._wait(_LAST_SECONDS)
            self._kill()
            if self._child is None:
                self._start(last=True)
                self._wait(_LAST_SECONDS)
                self._kill()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._child is not None and time.monotonic() < deadline:
            self._collect()
            time.sleep(_POLL_SECONDS)

    def _kill(self) -> None:
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
            self._wait(_POLL_SECONDS)

    def _start(self, *, last: bool = False) -> None:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = children.ru_utime + children.ru_stime - self._spent
        self._started = time.monotonic()
        with_gpus = self._started >= self._gpus_due and not last
        sample = _Sample(self._run, self._spec, last=last)
        self._child = fork_child(lambda: sample.take(ended, with_gpus=with_gpus))

    def _collect(self) -> None:
        """What the sample has cost says when the next is due; one that takes too long is ended."""
        if self._child is None:
            return
        now = time.monotonic()
        cost, code = 0.0, 0
        try:
            pid, status, used = os.wait4(self._child, os.WNOHANG)
            if pid == 0:
                if now - self._started > _MAX_SECONDS:
                    # Until the kernel lets go of it there is no other.
                    os.kill(self._child, signal.SIGKILL)
                return
            cost = used.ru_utime + used.ru_stime
            # A tool that a driver holds may not even let the sample end by itself.
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else _EXIT_GPU_TIMEOUT
        except ChildProcessError:  # it was ended with an attempt
            pass
        self._child = None
        self._spent += cost
        usual = min(_INTERVAL, max(1.0, self._started - self._began))
        self._due = self._started + max(usual, cost * _COST_RATIO / (os.cpu_count() or 1))
        if code == _EXIT_GPU_TIMEOUT:
            self._gpus_due = now + self._gpu_pause
            self._gpu_pause *= 2


class _Sample:
    """One sample, in its own process."""

    def __init__(self, run: NodeRun, spec: RunSpec, *, last: bool) -> None:
        self._run = run
        self._last = last
        self._environment: Mapping[str, str] = spec["environment"]
        self._links = {link["path"]: link["target"] for link in spec.get("links", [])}
        self._supervisor = os.getpid()

    def take(self, ended_seconds: float, *, with_gpus: bool) -> int:
        """Append it to the history; the process's exit code."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.nice(19)
        history = self._run.directory / "metrics.jsonl"
        before = _last_sample(history)
        container = container_processes(self._run.directory, (before or {}).get("container"))
        found: Json = {"time": round(time.time(), 3), "container": container.record}
        found.update(resource_usage.process_usage(self._supervisor, ended_seconds, container))
        found["host"] = resource_usage.host_usage()
        _add_rates(found, before, self._run.record.get("started_at"))
        code = 0
        try:
            found.update(self._gpus() if with_gpus else {})
        except gpus.ToolTimeout as error:
            found["problem"] = error.summary
            code = _EXIT_GPU_TIMEOUT
        found.update(self._disks())
        _append(history, found)
        return code

    def _gpus(self) -> Json:
        try:
            found = gpus.list_gpus(_GPU_SECONDS)
        except gpus.ToolTimeout:
            raise
        except Failure:  # plans and ``nodes`` report it
            return {}
        if not found:
            return {}
        job = resource_usage.job_pids(self._supervisor, descendants(self._supervisor))
        chosen = gpus.visible_gpus(found, resource_usage.variables_of(job))
        return {
            "gpu_utilization": {str(one.number): one.utilization for one in chosen},
            "gpu_memory_usage_bytes": {str(one.number): one.memory_used for one in chosen},
            "gpu_memory_total_bytes": {str(one.number): one.memory_total for one in chosen},
            "gpu_names": {str(one.number): one.name for one in chosen},
        }

    def _disks(self) -> Json:
        """How full disks are; what directories hold is looked up more rarely, as that may take long."""
        places = {
            "ephemeral_storage": [self._run.work, self._run.scratch, self._run.view],
            "checkpoints": self._place("BT_CHECKPOINT_DIR"),
            "cache": self._place("BT_PROJECT_CACHE_DIR"),
        }
        usage = self._usage(places)
        return {
            name: {
                "usage_bytes": usage.get(name),
                **(resource_usage.file_system_usage(paths[0]) or {}),
            }
            for name, paths in places.items()
            if paths
        }

    def _usage(self, places: Mapping[str, List[Path]]) -> Mapping[str, Optional[int]]:
        path = self._run.directory / "metrics-disk.json"
        known = read_json(path) or {"due": 0.0, "usage": {}}
        fresh = time.time() < known["due"] < time.time() + _DAY
        if fresh and not self._last:
            usage: Mapping[str, Optional[int]] = known["usage"]
            return usage
        longest = _DISK_SECONDS if not self._last else _LAST_SECONDS / 2
        deadline, cpu = time.monotonic() + longest, time.process_time()
        usage = {name: resource_usage.disk_usage(paths, deadline) for name, paths in places.items()}
        cost = (time.process_time() - cpu) * _COST_RATIO / (os.cpu_count() or 1)
        write_json(path, {"due": time.time() + max(_DISK_INTERVAL, cost), "usage": usage})
        return usage

    def _place(self, variable: str) -> List[Path]:
        shown = self._environment.get(variable)
        return [Path(self._links.get(shown, shown))] if shown else []


def read_metrics(request: MetricsRequest, emit: Callable[[Json], None]) -> MetricsResponse:
    """The samples of a run, the oldest first; ``since``: only those taken after that time."""
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise Failure("missing", f"the node knows no run {run.key}")
    since = float(request.get("since") or 0.0)
    found = _read(run.directory / "metrics.jsonl")
    return {"samples": [one for one in found if one["time"] > since]}


def _add_rates(found: Json, before: Optional[Json], started_at: Optional[float]) -> None:
    """Cores in use since the sample before, or since the start; None where the clock was set back."""
    own = {"time": started_at or found["time"], "cpu_seconds": 0.0}
    since = before or own
    found["cpu_usage"] = _rate(found, since, found["time"] - since["time"])
    if before is not None:
        host, earlier = found["host"], before["host"]
        host["cpu_usage"] = _rate(host, earlier, found["time"] - before["time"])


def _rate(now: Json, before: Json, seconds: float) -> Optional[float]:
    if seconds <= 0:
        return None
    used = float(now["cpu_seconds"]) - float(before["cpu_seconds"])
    return round(max(0.0, used) / seconds, 3)


def _append(path: Path, sample: Json) -> None:
    """One line more; the older half of a history that is too long loses every second line."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(os.open(path, flags, 0o600), "w") as stream:
        stream.write(json.dumps(sample) + "\n")
        size = stream.tell()
    if size > HISTORY_BYTES:
        lines = path.read_bytes().splitlines(keepends=True)
        half = len(lines) // 2
        write_atomic(path, b"".join(lines[:half:2] + lines[half:]))


def _last_sample(path: Path) -> Optional[Json]:
    found = _read(path, 2**16)
    return found[-1] if found else None


def _read(path: Path, most: int = 0) -> List[Json]:
    """The samples in a file, or in its last bytes; a line that a crash cut off is none."""
    try:
        with path.open("rb") as stream:
            if most:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
            text = stream.read()
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            sample = json.loads(line)
            if isinstance(sample, dict) and "host" in sample:
                found.append(sample)
    return found

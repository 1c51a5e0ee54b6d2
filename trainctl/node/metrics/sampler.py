"""Sample a run's usage in separate processes, which may hang.

See runs/DESIGN.md, "Logs and metrics".
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import stat
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from trainctl.base.filesystem.files import read_json, write_atomic, write_json
from trainctl.base.protocol.runs import MetricsRequest, MetricsResponse, RunSpec
from trainctl.base.system.processes import cpu_seconds, descendants, parent_of
from trainctl.base.system.syscalls import fork_child
from trainctl.errors import TrainctlError, UnknownOnNode
from trainctl.node.containers.cleanup import container_processes
from trainctl.node.metrics.progress import read_progress
from trainctl.node.runs.event_files import MARK
from trainctl.node.runs.points import update_results
from trainctl.node.runs.record import NodeRun
from trainctl.node.system import gpus
from trainctl.node.system.layout import Layout

HISTORY_BYTES = 2**21
"""Maximum size of a run's history of samples."""

_INTERVAL = 10.0
_DISK_INTERVAL = 60.0
_COST_RATIO = 200
"""Pause after a sample, in seconds per CPU second it took, divided by the number of CPUs: at most 0.5 % load."""
_DISK_SECONDS = 10.0
_DAY = 86400.0
_GPU_SECONDS = 5.0  # nvidia-smi takes up to 3 s without the driver's persistence mode
_EVENT_FILES = 100
"""How many of TensorBoard's files are read."""
_GPU_PAUSE = 600.0  # after a timeout; a hanging driver leaves a process behind each time
_MAX_SECONDS = 30.0
_LAST_SECONDS = 2.0
_POLL_SECONDS = 0.02
_EXIT_GPU_TIMEOUT = 3

Json = Dict[str, Any]


class Sampler:
    """Start samples when they are due and collect finished ones, without waiting.

    Intervals grow from 1 s to 10 s, longer if samples would take more than 0.5 % of the machine.
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
        """Collect a finished sample and start one that is due."""
        with contextlib.suppress(OSError):
            self._collect()
            if self._child is None and time.monotonic() >= self._due:
                self._start()

    def finish(self) -> None:
        """Take a last sample, and kill one that is still running."""
        self.settle()
        with contextlib.suppress(OSError):
            if self._child is None:
                self._start(last=True)
            self.settle()

    def settle(self) -> None:
        """Wait for a sample that is running, or kill it: it would store what an earlier attempt reported."""
        with contextlib.suppress(OSError):
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
            self._wait(_LAST_SECONDS)

    def _start(self, *, last: bool = False) -> None:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = children.ru_utime + children.ru_stime - self._spent
        self._started = time.monotonic()
        supervisor = os.getpid()
        self._child = fork_child(lambda: self._sample(supervisor, ended, last=last))

    def _collect(self) -> None:
        """Schedule the next sample by the cost of the last; kill one that takes too long."""
        if self._child is None:
            return
        now = time.monotonic()
        cost, code = 0.0, 0
        try:
            pid, status, usage = os.wait4(self._child, os.WNOHANG)
            if pid == 0:
                if now - self._started > _MAX_SECONDS:
                    # The next sample starts once the kernel has reaped this one.
                    os.kill(self._child, signal.SIGKILL)
                return
            cost = usage.ru_utime + usage.ru_stime
            # A GPU tool hanging in a driver may keep the sample from exiting.
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else _EXIT_GPU_TIMEOUT
        except ChildProcessError:  # killed together with an attempt
            pass
        self._child = None
        self._spent += cost
        interval = min(_INTERVAL, max(1.0, self._started - self._began))
        self._due = self._started + max(interval, cost * _COST_RATIO / (os.cpu_count() or 1))
        if code == _EXIT_GPU_TIMEOUT:
            self._gpus_due = now + self._gpu_pause
            self._gpu_pause *= 2

    def _sample(self, supervisor: int, ended_seconds: float, *, last: bool) -> int:
        """Append a sample to the history in a process of its own; return its exit code."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.nice(19)
        history = self._run.directory / "metrics.jsonl"
        before = next(iter(_read(history, 2**16)[-1:]), None)
        container = container_processes(self._run.directory, (before or {}).get("container"))
        sample: Json = {"time": round(time.time(), 3), "container": container.record}
        below = [pid for pid in descendants(supervisor) if pid != os.getpid()]
        job = [*job_pids(supervisor, below), *container.pids]
        seconds = ended_seconds + cpu_seconds(below) + container.cpu_seconds
        sample["processes"], sample["cpu_seconds"] = len(job), round(seconds, 2)
        sample["cpu_memory_usage_bytes"] = sum(map(_memory, job))
        memory = _parse_table(Path("/proc/meminfo"))
        # user, nice, system, irq, softirq and steal, of all CPUs: proc(5)
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        sample["host"] = {
            "cpu_count": os.cpu_count() or 1,
            "cpu_seconds": round((sum(times[:3]) + sum(times[5:8])) / _TICKS, 2),
            "memory_total_bytes": memory.get("MemTotal", 0) * 1024,
            "memory_available_bytes": memory.get("MemAvailable", 0) * 1024,
            **_network(),
        }
        started_at = self._run.record.get("started_at")
        # cores in use since the previous sample; None if the clock was set back
        since = before or {"time": started_at or sample["time"], "cpu_seconds": 0.0}
        seconds = sample["time"] - since["time"]
        sample["cpu_usage"] = _rate(sample, since, seconds)
        if before is not None:
            sample["host"]["cpu_usage"] = _rate(sample["host"], before["host"], seconds)
        sample["progress"] = read_progress(self._run, started_at)
        if not last:  # the supervisor reads the rest
            update_results(self._run)
        code = 0
        try:
            with_gpus = self._started >= self._gpus_due and not last
            sample.update(_gpu_usage(supervisor) if with_gpus else {})
        except gpus.ToolTimeout as error:
            sample["problem"] = error.summary
            code = _EXIT_GPU_TIMEOUT
        except TrainctlError:  # reported by ``plan`` and ``nodes``
            pass
        sample.update(self._disks(last=last))
        _append(history, sample)
        return code

    def _disks(self, *, last: bool) -> Json:
        """Usage of file systems and, less often, of directories."""
        directories = {
            "ephemeral_storage": [self._run.work, self._run.scratch, self._run.view],
            "checkpoints": job_directory(self._spec, "BT_CHECKPOINT_DIR"),
            "cache": job_directory(self._spec, "BT_PROJECT_CACHE_DIR"),
        }
        usage = self._usage(directories, last=last)
        disks: Json = {}
        for name, paths in directories.items():
            if not paths:
                continue
            disks[name] = {"usage_bytes": usage.get(name)}
            with contextlib.suppress(OSError):
                status = os.statvfs(paths[0])
                used = (status.f_blocks - status.f_bfree) * status.f_frsize
                available = status.f_bavail * status.f_frsize
                disks[name]["utilization"] = round(used / max(used + available, 1), 4)  # as df does
                disks[name]["free_bytes"] = available
        return disks

    def _usage(
        self, directories: Mapping[str, List[Path]], *, last: bool
    ) -> Mapping[str, Optional[int]]:
        stored = read_json(self._run.disk_usage) or {"due": 0.0, "usage": {}, "event_files": []}
        is_fresh = time.time() < stored["due"] < time.time() + _DAY
        usage: Mapping[str, Optional[int]] = stored["usage"]
        if is_fresh and not last:
            return usage
        timeout = _DISK_SECONDS if not last else _LAST_SECONDS / 2
        deadline, cpu = time.monotonic() + timeout, time.process_time()
        found = [*stored["event_files"]]
        usage = {  # the project's cache has files of other runs
            name: disk_usage(paths, deadline, None if name == "cache" else found)
            for name, paths in directories.items()
        }
        cost = (time.process_time() - cpu) * _COST_RATIO / (os.cpu_count() or 1)
        due = time.time() + max(_DISK_INTERVAL, cost)
        event_files = [*dict.fromkeys(found)][:_EVENT_FILES]
        write_json(self._run.disk_usage, {"due": due, "usage": usage, "event_files": event_files})
        return usage


def job_directory(spec: RunSpec, variable: str) -> List[Path]:
    """Return the directory on the node that a variable of the job names, if it is set."""
    links = {link["path"]: link["target"] for link in spec.get("links", [])}
    path = spec["environment"].get(variable)
    return [Path(links.get(path, path))] if path else []


def read_metrics(request: MetricsRequest, emit: Callable[[Json], None]) -> MetricsResponse:
    """Read a run's samples, oldest first; ``since``: only later ones."""
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise UnknownOnNode(f"run {run.key} not found on the node")
    since = float(request.get("since") or 0.0)
    samples = _read(run.directory / "metrics.jsonl")
    return {"samples": [sample for sample in samples if sample["time"] > since]}


def _rate(now: Json, before: Json, seconds: float) -> Optional[float]:
    if seconds <= 0:
        return None
    used = float(now["cpu_seconds"]) - float(before["cpu_seconds"])
    return round(max(0.0, used) / seconds, 3)


def _append(path: Path, sample: Json) -> None:
    """Append a line; thin out the older half of a history that is too long."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(os.open(path, flags, 0o600), "w") as stream:
        stream.write(json.dumps(sample) + "\n")
        size = stream.tell()
    if size > HISTORY_BYTES:
        lines = path.read_bytes().splitlines(keepends=True)
        half = len(lines) // 2
        write_atomic(path, b"".join(lines[:half:2] + lines[half:]))


def _read(path: Path, last_bytes: int = 0) -> List[Json]:
    """Samples in a file, or in its last bytes; skips truncated lines."""
    try:
        with path.open("rb") as stream:
            if last_bytes:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - last_bytes))
            text = stream.read()
    except FileNotFoundError:
        return []
    samples = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            sample = json.loads(line)
            if isinstance(sample, dict) and "host" in sample:
                samples.append(sample)
    return samples


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK_UNIT = 512  # unit of st_blocks on every file system: stat(2)


def job_pids(supervisor: int, below: Iterable[int]) -> List[int]:
    """Processes below a supervisor except its direct children, such as the warden."""
    return [pid for pid in below if parent_of(pid) != supervisor]


def disk_usage(
    paths: Iterable[Path], deadline: float, event_files: Optional[List[str]] = None
) -> Optional[int]:
    """Bytes on disk below directories, each inode once; None after ``deadline``.

    Adds the paths of TensorBoard's files to ``event_files``.
    """
    total = 0
    inodes = set()
    for top in paths:
        for directory, _, names in os.walk(str(top)):
            if time.monotonic() > deadline:
                return None
            for name in names:
                if event_files is not None and MARK in name:
                    event_files.append(f"{directory}/{name}")
                try:
                    status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - there may be millions
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    if (status.st_dev, status.st_ino) in inodes:
                        continue
                    inodes.add((status.st_dev, status.st_ino))
                total += status.st_blocks * _BLOCK_UNIT
    return total


def _gpu_usage(supervisor: int) -> Json:
    """Usage of the GPUs that the variables of the job's first readable process name; TrainctlError if a tool fails."""
    devices = gpus.list_gpus(_GPU_SECONDS)
    if not devices:
        return {}
    variables: Dict[str, str] = {}
    for pid in job_pids(supervisor, descendants(supervisor)):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            if text:
                variables = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
                break
    visible = gpus.visible_gpus(devices, variables)
    return {
        "gpu_utilization": {str(gpu.number): gpu.utilization for gpu in visible},
        "gpu_memory_usage_bytes": {str(gpu.number): gpu.memory_used for gpu in visible},
        "gpu_memory_total_bytes": {str(gpu.number): gpu.memory_total for gpu in visible},
        "gpu_names": {str(gpu.number): gpu.name for gpu in visible},
    }


def _memory(pid: int) -> int:
    """Memory of a process: proportional share (PSS) if reported, else RSS."""
    try:
        return _parse_table(Path(f"/proc/{pid}/smaps_rollup"))["Pss"] * 1024
    except (OSError, KeyError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _parse_table(path: Path) -> Dict[str, int]:
    """Parse ``Name: number kB`` lines."""
    table = {}
    for line in path.read_text().splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdigit():
            table[name] = int(words[0])
    return table


def _network() -> Json:
    """Bytes received and sent by all interfaces except loopback: proc(5)."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return {"network_received_bytes": received, "network_sent_bytes": sent}

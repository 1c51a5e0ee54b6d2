"""A run's directory: specification, supervisor and outcome; and what a node reads of the job. See DESIGN.md, "Runs"."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

from trainctl.base.filesystem.files import (
    PRIVATE_FILE,
    create_exclusive,
    list_names,
    make_directory,
    read_json,
    write_atomic,
    write_json,
)
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.base.protocol.runs import (
    ApplyPosition,
    EvaluationRow,
    QueueOrder,
    RunGpus,
    RunReport,
    RunSpec,
    UploadStatus,
)
from trainctl.base.system.processes import is_alive, process_record
from trainctl.base.units import parse_accelerator, parse_duration
from trainctl.errors import LockHeld
from trainctl.node.containers import cleanup
from trainctl.node.system import layout as names
from trainctl.node.system.host import kill_marked, send_signal
from trainctl.node.system.layout import Layout

PENDING = "TRAINING_JOB_PENDING"
CREATED = "TRAINING_JOB_CREATED"
DEPLOYING = "TRAINING_JOB_DEPLOYING"
RUNNING = "TRAINING_JOB_RUNNING"
COMPLETED = "TRAINING_JOB_COMPLETED"
FAILED = "TRAINING_JOB_FAILED"
DEPLOY_FAILED = "TRAINING_JOB_DEPLOY_FAILED"
STOPPED = "TRAINING_JOB_STOPPED"
LOST = "TRAINING_JOB_LOST"
ENDED = frozenset({COMPLETED, FAILED, DEPLOY_FAILED, STOPPED})

RUN_VARIABLE = "TRAINCTL_RUN_DIRECTORY"
"""Environment variable that identifies a run's processes."""

PREPARE = "prepare"
"""Stage before the job that fills its training cache."""

_CLAIM = "claim."
_SECRETS = "secrets.json"
_TAIL_BYTES = 2**16
RECORD_BYTES = 2**16
"""Part of the reserved disk space that is for the record of the end."""
_REPORTED = 500
"""How many evaluations a run reports."""
_RESERVE_BYTES = RECORD_BYTES + 3 * 2**16
"""The rest is for the upload journal, small manifests and the last sample."""


class NodeRun:
    """A run under one root directory."""

    def __init__(self, layout: Layout, key: Any) -> None:
        self.layout = layout
        self.key = str(key)
        self.directory = layout.run(key)
        self.work = self.directory / "work"
        self.scratch = self.directory / "scratch"
        self.view = self.directory / "view"
        self.loaded = self.directory / "loaded"
        self.step = self.directory / "step"
        self.progress = self.directory / "progress"
        """Reported training progress, and the hook that reports that of transformers."""
        self.progress_lines = self.progress / "lines.jsonl"
        self.disk_usage = self.directory / "metrics-disk.json"
        """Disk usage that was measured last, and paths of TensorBoard's files."""
        self.points = self.directory / "points"
        """Points of what the run reported, and how far its progress was read."""
        self.gang = self.directory / "gang.json"
        """Address and token of rank 0 for the other ranks of a gang."""
        self.held = self.directory / "held"
        """Exit code of commands that have ended, while their shell keeps the run's place."""
        self._reserve = self.directory / "reserve"
        """Takes the disk space for recording the end while the run isn't over."""
        self.evaluated_step: Optional[int] = None
        """Step of the checkpoint that is evaluated: that of results that name none."""
        self.retains_secrets = False
        """Whether stored secrets outlive the start, as a batch system may start the run again."""

    @property
    def held_code(self) -> Optional[int]:
        """Content of ``held``; None if it is empty."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self.held.read_text())
        return None

    @property
    def session_extension(self) -> float:
        """Seconds by which users have extended the session."""
        return float((read_json(self.directory / "session.json") or {}).get("seconds", 0.0))

    def extend_session(self, seconds: float) -> None:
        """Extend the session."""
        write_json(self.directory / "session.json", {"seconds": self.session_extension + seconds})

    @property
    def mark(self) -> bytes:
        """Entry in the environment of all processes of the run."""
        return f"{RUN_VARIABLE}={self.directory}".encode()

    def log(self, rank: int, stage: str = "") -> Path:
        """Path of the log of the job, or of a stage before it."""
        return self.directory / "log" / f"{stage and stage + '-'}rank-{rank}.log"

    def tail(self, rank: int, stage: str = "") -> str:
        """End of a log; empty if there is none."""
        try:
            with self.log(rank, stage).open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return stream.read().decode(errors="replace")
        except OSError:
            return ""

    def prepared_by(self, rank: int) -> Path:
        """Path of the file that names the run that prepared the training cache."""
        return self.log(rank, PREPARE).with_suffix(".json")

    @property
    def spec(self) -> Optional[RunSpec]:
        """The specification; None before ``create``."""
        return cast("Optional[RunSpec]", read_json(self.directory / "spec.json"))

    def create(self, spec: RunSpec) -> bool:
        """Store the specification; True if it replaces an older generation."""
        make_directory(self.directory)
        make_directory(self.layout.applies)
        # Opening an existing file leaves its mtime, the time of the apply.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        os.close(os.open(self._apply(spec["turn"]), flags, PRIVATE_FILE))
        path = self.directory / "spec.json"
        if not path.exists():
            self._reserve_space()
        if create_exclusive(path, json.dumps(spec, sort_keys=True).encode()):
            return False
        recorded = self._generation
        if spec["generation"] < recorded:
            raise LockHeld(
                f"run {self.key} belongs to a newer attempt",
                f"This request has generation {spec['generation']}, the node has {recorded}.",
            )
        newer = spec["generation"] > recorded and not self.started
        if newer:
            write_json(path, dict(spec))
        return newer

    def _reserve_space(self) -> None:
        """Take the disk space for recording the end, with bytes that file systems can't compress."""
        write_atomic(self._reserve, os.urandom(_RESERVE_BYTES), durable=False)

    def release_space(self, kept: int = 0) -> None:
        """Free the reserved disk space except ``kept`` bytes."""
        with contextlib.suppress(OSError):
            os.truncate(self._reserve, kept) if kept else self._reserve.unlink()

    def is_superseded(self, generation: int) -> bool:
        """Check whether a newer attempt has taken over the run."""
        return self._generation > generation

    @property
    def _generation(self) -> int:
        spec = self.spec
        return spec["generation"] if spec else 0

    @property
    def order(self) -> Mapping[str, Any]:
        """Changes of ``priority`` and ``slots`` since the run's creation."""
        return read_json(self.directory / "order.json") or {}

    @property
    def queued_ns(self) -> int:
        """Position in queues: time of the apply in nanoseconds, plus index in the plan."""
        spec = self.spec
        if spec:
            with contextlib.suppress(FileNotFoundError):
                return self._apply(spec["turn"]).stat().st_mtime_ns + spec["turn"]["index"]
        return (self.directory / "spec.json").stat().st_mtime_ns

    def grace_seconds(self, spec: RunSpec) -> float:
        """Seconds from SIGTERM to SIGKILL, by the stop request or the specification."""
        return float(self.stop_request.get("grace_seconds", spec["grace_seconds"]))

    @property
    def stop_request(self) -> Mapping[str, Any]:
        """``grace_seconds``, and why the machine's watcher has ``interrupted`` the run; empty without a request."""
        return read_json(self.directory / "stop.json") or {}

    def request_stop(self, **request: Any) -> None:
        """Store the request; does nothing if the disk is full, which doesn't prevent the stop."""
        with contextlib.suppress(OSError):
            write_json(self.directory / "stop.json", request)

    @property
    def interruption(self) -> Optional[str]:
        """Why the machine's watcher stopped the run; None if it didn't."""
        return self.stop_request.get("interrupted")

    def _apply(self, position: ApplyPosition) -> Path:
        """File whose mtime is the time of an apply."""
        return self.layout.applies / names.check_name(position["apply"], "apply")

    def set_queue_order(self, changes: QueueOrder) -> None:
        """Change ``priority`` and ``slots`` of a pending run."""
        write_json(self.directory / "order.json", dict(changes))

    @property
    def started(self) -> bool:
        """Check whether the first command was or may have been executed."""
        return (self.directory / "started").exists()

    def mark_started(self, supervisor: Mapping[str, Any]) -> bool:
        """Record the start, but not of one of several evaluations; False if another supervisor did."""
        if self.evaluated_step is not None:
            return self.supervisor == supervisor
        path = self.directory / "started"
        return (
            create_exclusive(path, json.dumps(supervisor).encode()) or read_json(path) == supervisor
        )

    @property
    def batch_start(self) -> Mapping[str, Any]:
        """Last start by a batch system: its number, from 0, and the host."""
        return read_json(self.directory / "start.json") or {"number": 0, "host": None}

    def begin_batch_start(self, number: int, host: str) -> None:
        """Prepare a start by a batch system; processes of earlier ones on this host are killed."""
        if number > self.batch_start["number"]:
            holder = self.supervisor
            if holder is not None and is_alive(holder):
                send_signal([int(holder["pid"])], signal.SIGKILL)
            kill_marked(self.mark)
            cleanup.remove_container(self.directory)
            claims = [f"{_CLAIM}{claim}" for claim in self._claims()]
            for name in (self.gang.name, "run.json", "started", *claims):
                with contextlib.suppress(FileNotFoundError):
                    (self.directory / name).unlink()
            self._reserve_space()
        write_json(self.directory / "start.json", {"number": number, "host": host})

    def claim(self) -> bool:
        """Claim the run; False if another supervisor lives, or it started or ended."""
        numbers = self._claims()
        if numbers and is_alive(self._claimer(numbers[-1])):
            return False
        if self.started or self.record.get("status") in ENDED:
            return False
        number = numbers[-1] + 1 if numbers else 1
        return create_exclusive(
            self.directory / f"{_CLAIM}{number}", json.dumps(process_record()).encode()
        )

    @property
    def supervisor(self) -> Optional[Mapping[str, Any]]:
        """Process record of the last supervisor, alive or dead."""
        numbers = self._claims()
        return self._claimer(numbers[-1]) if numbers else None

    @property
    def record(self) -> RunReport:
        """The keys of the report that the supervisor recorded last; empty before."""
        return cast("RunReport", read_json(self.directory / "run.json") or {})

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace the record; durable unless it only reports progress of a deployment."""
        durable = record.get("status") != DEPLOYING
        if record.get("status") in ENDED:
            self.release_space()
        write_json(self.directory / "run.json", dict(record), durable=durable)

    @property
    def evaluations(self) -> List[EvaluationRow]:
        """The checkpoints of the run that this one evaluates, the oldest first, and what became of each."""
        return [*(read_json(self.directory / "evaluations.json") or {}).get("rows", ())]

    def write_evaluations(self, rows: Sequence[EvaluationRow]) -> None:
        """Replace the evaluations, durably."""
        write_json(self.directory / "evaluations.json", {"rows": rows})

    def status(self) -> Optional[RunReport]:
        """Report the run's status; None if the run doesn't exist.

        Kills remaining processes and containers of a lost run. A run whose secrets were lost before its first command is
        PENDING.
        """
        spec = self.spec
        if spec is None:
            return None
        holder = self.supervisor
        # check first: a supervisor writes its last record, then exits
        supervised = is_alive(holder)
        record = self.record
        status = record.get("status", CREATED)
        store = spec.get("store") or {}
        if spec.get("batch") is not None:  # its supervisor's host may be another: ask the scheduler
            supervised = status not in ENDED
        if not supervised and status not in ENDED:
            status = LOST if self.started else CREATED
            needed = secret_variables(spec) or store.get("secret")
            if status == LOST:
                kill_marked(self.mark)
                cleanup.remove_container(self.directory)
                self.discard_secrets()
                self.release_space()
            elif holder is not None and not spec.get("gang") and (needed or evaluated_run(spec)):
                # a new supervisor would need the secrets; never for gangs
                status = PENDING
                is_stored = not needed or self.stored_secrets is not None
                waiting = WAITS_FOR_RESUME if is_stored else WAITS_FOR_SECRETS
                record = {**record, "waiting": waiting, "queue": None}
        identity = {name: spec[name] for name in ("key", "id", "number", "generation", "rank")}
        report: Dict[str, Any] = {
            **dict.fromkeys(RunReport.__annotations__),  # null until recorded
            **record,
            **identity,
            "status": status,
            "created_at": (self.directory / "spec.json").stat().st_mtime,
            "restarts": self.batch_start["number"],
            "host": self.batch_start["host"],
            "sync": upload_status(self.directory),
            "evaluations": self.evaluations[-_REPORTED:] or None,
            "supervised": supervised and status not in ENDED,
            "pid": holder.get("pid") if holder and supervised else None,
        }
        return cast("RunReport", report)

    def store_secrets(self, values: Mapping[str, str]) -> None:
        """Store secrets in a private file until the run starts."""
        if self.stored_secrets != values:
            self.discard_secrets()
            create_exclusive(self.directory / _SECRETS, json.dumps(dict(values)).encode())

    @property
    def stored_secrets(self) -> Optional[Dict[str, str]]:
        """The stored secrets; None if there are none."""
        return read_json(self.directory / _SECRETS)

    def discard_secrets(self) -> None:
        """Remove stored secrets, and temporary files of an interrupted write."""
        if self.retains_secrets:
            return
        for name in list_names(self.directory):
            if name == _SECRETS or name.startswith(f".{_SECRETS}."):
                with contextlib.suppress(FileNotFoundError):
                    (self.directory / name).unlink()

    def _claims(self) -> List[int]:
        numbers = (
            name[len(_CLAIM) :] for name in list_names(self.directory) if name.startswith(_CLAIM)
        )
        return sorted(int(number) for number in numbers if number.isdigit())

    def _claimer(self, number: int) -> Optional[Mapping[str, Any]]:
        return read_json(self.directory / f"{_CLAIM}{number}")


def part_of(spec: RunSpec, document: type) -> Dict[str, Any]:
    """Members of the specification that a TypedDict has, too."""
    return {name: value for name, value in spec.items() if name in document.__annotations__}


def may_restart(status: RunReport) -> bool:
    """Check that the run has not started and has no supervisor."""
    return not status["supervised"] and status["status"] in (CREATED, PENDING)


def upload_status(directory: Path) -> UploadStatus:
    """Status of the upload of a run's checkpoints."""
    return cast("UploadStatus", read_json(directory / "sync.json") or {})


def list_runs(layout: Layout) -> List[NodeRun]:
    """All runs under the root directory."""
    return [run for run, _ in list_specs(layout)]


def list_specs(layout: Layout) -> List[Tuple[NodeRun, RunSpec]]:
    """All runs under the root directory with their specifications."""
    runs = (NodeRun(layout, name) for name in list_names(layout.runs) if not name.startswith("."))
    return [(run, spec) for run, spec in ((run, run.spec) for run in runs) if spec is not None]


def start_commands(spec: RunSpec) -> List[str]:
    """The commands of the job."""
    return [*spec["job"]["runtime"]["start_commands"]]


def with_commands(spec: RunSpec, commands: Sequence[str]) -> RunSpec:
    """The specification with other commands."""
    job = spec["job"]
    runtime = {**job["runtime"], "start_commands": [*commands]}
    changed: RunSpec = {**spec, "job": {**job, "runtime": runtime}}
    return changed


def evaluated_run(spec: RunSpec) -> Optional[str]:
    """Key of the run for each of whose checkpoints the commands run; None for other jobs."""
    section = spec["job"].get("for_each_checkpoint") or {}
    keys = (each["key"] for each in spec["follows"] if each["address"] == section.get("job"))
    return next(keys, None)


def prepare_commands(spec: RunSpec) -> List[str]:
    """Commands that run once for the project's training cache."""
    cache = spec["job"]["runtime"]["cache_config"]
    return [*(cache["prepare_commands"] or ())] if cache["enabled"] else []


def secret_variables(spec: RunSpec) -> Dict[str, str]:
    """Names of secrets by variable."""
    declared: Mapping[str, Any] = spec["job"]["runtime"]["environment_variables"]
    return {
        name: value["secret"]
        for name, value in declared.items()
        if not isinstance(value, str) and name not in spec["environment"]
    }


def declared_variables(spec: RunSpec) -> Mapping[str, str]:
    """Variables of the job, with names of secrets as values."""
    return {**spec["environment"], **secret_variables(spec)}


class WeightsMount(NamedTuple):
    """Address, listing and place of weights."""

    address: str
    listing: str
    location: str


def weights_of(spec: RunSpec) -> Iterator[WeightsMount]:
    """The weights of the job; a location is relative to the working directory or absolute."""
    for weights in spec["job"]["weights"]:
        address = weights["address"]
        location = weights["mount_location"] or f"weights/{address}"
        yield WeightsMount(address, spec["listings"][address], location)


def gpus_of(spec: RunSpec) -> RunGpus:
    """The GPUs that the job needs here; none if a batch system has granted them."""
    if spec["batch"]:
        return {"count": 0, "kind": "", "declared": 0}
    kind, count = parse_accelerator(spec["job"]["compute"]["accelerator"])
    return {"count": count, "kind": kind, "declared": spec["declared_gpus"]}


def max_duration_seconds(spec: RunSpec) -> Optional[float]:
    """Time limit of the run."""
    limit = spec["job"]["max_duration"]
    return None if limit is None else parse_duration(limit)


def keeps_checkpoints(spec: RunSpec) -> bool:
    """Whether the run stores checkpoints."""
    return bool(spec["job"]["runtime"]["checkpointing_config"]["enabled"])


def upload_seconds(spec: RunSpec) -> float:
    """How long to wait for the last upload when the run ends."""
    return parse_duration(spec["checkpoints"]["upload_timeout"])


def checkpoint_bytes(spec: RunSpec) -> Optional[int]:
    """Size of the run's directory at which the run is stopped."""
    gib = spec["job"]["runtime"]["checkpointing_config"]["volume_size_gib"]
    return gib * 2**30 if gib else None

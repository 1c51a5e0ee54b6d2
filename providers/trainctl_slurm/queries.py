"""Read what Slurm's commands print; for Slurm 22.05 and later."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate

from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.plugin_api.scheduler import (
    BatchForecast,
    BatchJob,
    BatchMachine,
    BatchState,
    PartitionFacts,
)
from trainctl_slurm.submission import KEY

_COLUMNS = {"JobID": 24, "State": 24, "RestartCnt": 12, "Reason": 80, "NodeList": 400, "EndTime": 24, "Comment": 600}  # fmt: skip


def squeue_arguments() -> list[str]:
    """Return the command that lists all jobs that Slurm remembers, by fixed columns."""
    return ["squeue", "--noheader", "--states=all", f"--Format={_format(_COLUMNS)}"]


def parse_jobs(output: str) -> Iterator[BatchJob]:
    """Yield the jobs that trainctl submitted."""
    for number, state, restarts, reason, nodes, ended_at, comment in _rows(output, _COLUMNS):
        if not comment.startswith(KEY):
            continue
        batch_state = STATES.get(state, BatchState.RUNNING)
        word, _, detail = reason.partition(", ")  # ReqNodeNotAvail, UnavailableNodes:n4
        known = ", ".join(filter(None, (REASONS.get(word, word), detail)))
        yield BatchJob(
            number,
            comment.removeprefix(KEY).partition(" ")[0],
            batch_state,
            reason=known if batch_state is BatchState.PENDING else "",
            restarts=int(restarts) if restarts.isdigit() else 0,
            nodes=(nodes,) if nodes else (),
            ended_at=_unix_time(ended_at) if batch_state.ended else None,
        )


STATES = {
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
        BatchState.PENDING,
    ),
    "COMPLETED": BatchState.COMPLETED,
    "FAILED": BatchState.FAILED,
    "CANCELLED": BatchState.CANCELLED,
    "REVOKED": BatchState.CANCELLED,
    "TIMEOUT": BatchState.TIME_LIMIT,
    "DEADLINE": BatchState.TIME_LIMIT,
    "NODE_FAIL": BatchState.NODE_FAILED,
    "BOOT_FAIL": BatchState.NODE_FAILED,
    "LAUNCH_FAILED": BatchState.NODE_FAILED,
    "OUT_OF_MEMORY": BatchState.OUT_OF_MEMORY,
    "PREEMPTED": BatchState.PREEMPTED,
}
"""Job states of squeue(1); all others have resources."""

REASONS = {
    "None": "",
    "Resources": "waits for free nodes",
    "Priority": "waits for jobs with a higher priority",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for a job that failed",
    "BeginTime": "starts again in at most 2 minutes",
    "ReqNodeNotAvail": "waits for a node that is down or reserved",
    "PartitionNodeLimit": "needs more nodes than the partition has",
    "PartitionTimeLimit": "exceeds the time limit of the partition",
    "QOSMaxWallDurationPerJobLimit": "exceeds the QOS's time limit: lower max_duration (--time is 10 minutes longer)",
    "AssocMaxWallDurationPerJobLimit": "exceeds the account's time limit: lower max_duration (--time is 10 minutes longer)",
    "PartitionConfig": "needs more than the partition has",
    "PartitionDown": "waits for its partition, which is down",
    "QOSMaxGRESPerUser": "waits: the user has the most GPUs that the QOS allows",
    "QOSMaxJobsPerUserLimit": "waits: the user has the most jobs that the QOS allows",
    "QOSGrpGRES": "waits: the QOS has its most GPUs",
    "AssocGrpGRES": "waits: the account has its most GPUs",
    "AssocMaxJobsLimit": "waits: the account has its most jobs",
    "JobHeldUser": "is held by its user",
    "JobHeldAdmin": "is held by an administrator",
    "Licenses": "waits for licenses",
    "Reservation": "waits for its reservation",
}
"""Reasons of squeue(1) in words."""


def sacct_arguments(option: str, values: Iterable[str]) -> list[str]:
    """Return the command that lists jobs of the last 30 days by ``jobs`` or ``name``."""
    selected = ("--starttime=now-30days", f"--{option}={','.join(values)}")
    columns = "--format=JobIDRaw,JobName%100,State%40,End"
    return ["env", "TZ=UTC", "sacct", "-X", "--noheader", "--parsable2", *selected, columns]


def parse_accounting(output: str, keys: Mapping[str, str]) -> dict[str, BatchJob]:
    """Return the jobs of sacct by key; ``keys`` are those of ids or names. ``reason``: UID of who cancelled it."""
    jobs: dict[str, BatchJob] = {}
    for line in output.splitlines():
        number, name, state, end, *_ = [*line.split("|"), "", "", "", ""]
        key = keys.get(number) or keys.get(name)
        if key and state:
            word, _, user = state.partition(" by ")  # CANCELLED by 1000
            batch_state = STATES.get(word, BatchState.RUNNING)
            jobs[key] = BatchJob(number, key, batch_state, user, ended_at=_unix_time(end))
    return jobs


def _unix_time(text: str) -> float | None:
    """Read a time of a command that was called with ``TZ=UTC``; None if it is unknown."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:  # N/A, Unknown
        return None


PARTITIONS = {"PartitionName": 80, "Nodes": 12, "Gres": 200, "GresUsed": 300, "Time": 24, "StateLong": 24}  # fmt: skip
MACHINES = {"NodeList": 80, "StateLong": 24, "Gres": 200, "GresUsed": 300, "Reason": 200}
"""Columns of sinfo with their widths."""


def sinfo_arguments(columns: Mapping[str, int]) -> list[str]:
    """Return the command that lists partitions by state of their nodes, or machines."""
    per_node = ["--Node"] if "NodeList" in columns else []
    return ["sinfo", "--noheader", *per_node, f"--Format={_format(columns)}"]


def _format(columns: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{width}" for name, width in columns.items())


def _rows(output: str, columns: Mapping[str, int]) -> Iterator[list[str]]:
    """Split lines at fixed columns: values may have spaces."""
    for line in output.splitlines():
        starts = accumulate(columns.values(), initial=0)
        yield [
            line[start : start + width].strip()
            for start, width in zip(starts, columns.values(), strict=False)
        ]


_GPUS = compile_lazily(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)(?![^,(])")
"""Type and count; a type may begin with a digit, as 3090 and 1g.10gb do."""
_DOWN = ("down", "drain", "fail", "maint", "unknown", "inval")


def parse_partitions(output: str) -> list[PartitionFacts]:
    """Return the partitions of sinfo, which prints a line for each state of nodes."""
    partitions: dict[str, PartitionFacts] = {}
    for name, nodes, gres, used, limit, state in _rows(output, PARTITIONS):
        count, gpus = int(nodes or 0), _gpus(gres)
        free = 0 if state.startswith(_DOWN) else max(0, gpus - _gpus(used))
        limits = "" if limit in ("infinite", "") else f"at most {limit}"
        known = partitions.get(name) or PartitionFacts(name, 0, 0, 0, 0, limits)
        partitions[name] = replace(
            known,
            nodes=known.nodes + count,
            gpus_per_node=max(known.gpus_per_node, gpus),
            gpus_free=known.gpus_free + count * free,
            gpus_total=known.gpus_total + count * gpus,
        )
    return [*partitions.values()]


def parse_machines(output: str) -> list[BatchMachine]:
    """Return the machines of sinfo, which prints one for each of its partitions."""
    machines = {
        name: BatchMachine(
            name,
            state.rstrip("*~#!%$@^-"),
            not state.startswith(_DOWN),
            reason="" if reason == "none" else reason,
            gpus=_gpus(gres),
            gpus_used=_gpus(used),
            gpu_type="/".join(sorted({kind for kind, _ in _GPUS.findall(gres) if kind})),
        )
        for name, state, gres, used, reason in _rows(output, MACHINES)
    }
    return [*machines.values()]


def _gpus(gres: str) -> int:
    return sum(int(number) for _, number in _GPUS.findall(gres))


def time_limits_arguments(partition: str) -> list[str]:
    """Return the command that lists the time limits of a partition; empty: of all."""
    named = [f"--partition={partition}"] if partition else []
    return ["sinfo", "--noheader", "--format=%P %l", *named]


def parse_time_limits(output: str, partition: str) -> list[float]:
    """Return the time limits of sinfo in seconds; without a partition, that of Slurm's default."""
    rows = (line.split() for line in output.splitlines())
    limits = {row[1] for row in rows if len(row) == 2 and (partition or row[0].endswith("*"))}
    return [_seconds(limit) for limit in sorted(limits) if limit[0].isdigit()]


def _seconds(limit: str) -> float:
    """Read ``[DAYS-]HOURS:MINUTES:SECONDS``, as 1-00:00:00 or 30:00."""
    days, _, clock = limit.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return int(days or 0) * 86400 + total


_START = compile_lazily(r"to start at (\S+)")
_PROCESSORS = compile_lazily(r"using (\d+) processors")
_FAR_SECONDS = 180 * 86400.0
"""For Slurm, a running job without a time limit ends a year after its start, a pending one in centuries."""


def parse_forecast(output: str, *, refused: bool) -> BatchForecast:
    """Read the answer of ``sbatch --test-only``, called with ``TZ=UTC``."""
    match = _START.search(output)
    if match is not None:
        start, processors = _unix_time(match[1]), _PROCESSORS.search(output)
        cpus = int(processors[1]) if processors else None
        if start is not None and start > time.time() + _FAR_SECONDS:
            return BatchForecast(obstacle="behind jobs without a time limit", cpus=cpus)
        return BatchForecast(start, cpus=cpus)
    text = " ".join(output.replace("allocation failure:", "").split()).removeprefix("sbatch: ")
    return BatchForecast(refusal=text if refused else "")

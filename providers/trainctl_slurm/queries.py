"""Read what Slurm's commands print; for Slurm 22.05 and later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate

from trainctl.plugin_api.scheduler import (
    BatchForecast,
    BatchJob,
    BatchMachine,
    BatchState,
    PartitionFacts,
)
from trainctl_slurm.submission import KEY

_COLUMNS = {"JobID": 24, "State": 24, "RestartCnt": 12, "Reason": 80, "NodeList": 400, "Comment": 600}  # fmt: skip


def squeue_arguments() -> list[str]:
    """Return the command that lists all jobs that Slurm remembers, by fixed columns."""
    return ["squeue", "--noheader", "--states=all", f"--Format={_format(_COLUMNS)}"]


def parse_jobs(output: str) -> Iterator[BatchJob]:
    """Yield the jobs that trainctl submitted."""
    for number, state, restarts, reason, nodes, comment in _rows(output, _COLUMNS):
        if not comment.startswith(KEY):
            continue
        batch_state = STATES.get(state, BatchState.RUNNING)
        known = "" if reason == "None" else REASONS.get(reason, reason)
        yield BatchJob(
            id=number,
            key=comment.removeprefix(KEY).partition(" ")[0],
            state=batch_state,
            reason=known if batch_state is BatchState.PENDING else "",
            restarts=int(restarts) if restarts.isdigit() else 0,
            nodes=(nodes,) if nodes else (),
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
    "Resources": "waits for free nodes",
    "Priority": "waits for jobs with a higher priority",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for a job that failed",
    "BeginTime": "starts again in at most 2 minutes",
    "ReqNodeNotAvail": "waits for a node that is down or reserved",
    "PartitionNodeLimit": "needs more nodes than the partition has",
    "PartitionTimeLimit": "exceeds the time limit of the partition",
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


def sacct_arguments(names: Sequence[str]) -> list[str]:
    """Return the command that lists jobs by name, of the last 30 days."""
    format_ = "--format=JobIDRaw,JobName%100,State%40"
    since = ("--starttime=now-30days", f"--name={','.join(names)}")
    return ["sacct", "--allocations", "--noheader", "--parsable2", *since, format_]


def parse_accounting(output: str, keys: Mapping[str, str]) -> dict[str, BatchJob]:
    """Return the jobs of sacct by key; ``keys`` are those of the names."""
    jobs: dict[str, BatchJob] = {}
    for line in output.splitlines():
        number, name, state, *_ = [*line.split("|"), "", "", ""]
        if name in keys and state:
            word, _, user = state.partition(" by ")  # CANCELLED by 1000
            reason = f"by user {user}" if user else ""
            state_ = STATES.get(word, BatchState.RUNNING)
            jobs[keys[name]] = BatchJob(number, keys[name], state_, reason)
    return jobs


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


_GPUS = re.compile(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)")
_DOWN = ("down", "drain", "fail", "maint", "unknown", "inval")


def parse_partitions(output: str) -> list[PartitionFacts]:
    """Return the partitions of sinfo, which prints a line for each state of nodes."""
    rows: dict[str, list[tuple[int, int, int, bool, str]]] = {}
    for name, nodes, gres, used, limit, state in _rows(output, PARTITIONS):
        count = int(nodes or 0)
        is_up = not state.startswith(_DOWN)
        rows.setdefault(name, []).append((count, _gpus(gres), _gpus(used), is_up, limit))
    return [_partition(name, entries) for name, entries in rows.items()]


def _partition(name: str, rows: Sequence[tuple[int, int, int, bool, str]]) -> PartitionFacts:
    limit = rows[0][4]
    return PartitionFacts(
        name=name,
        nodes=sum(count for count, *_ in rows),
        gpus_per_node=max(gpus for _, gpus, *_ in rows),
        gpus_free=sum(count * max(0, gpus - used) for count, gpus, used, up, _ in rows if up),
        gpus_total=sum(count * gpus for count, gpus, *_ in rows),
        limits="" if limit in ("infinite", "") else f"at most {limit}",
    )


def parse_machines(output: str) -> list[BatchMachine]:
    """Return the machines of sinfo, which prints one for each of its partitions."""
    machines = {
        name: BatchMachine(
            name=name,
            state=state.rstrip("*~#!%$@^-"),
            usable=not state.startswith(_DOWN),
            reason="" if reason == "none" else reason,
            gpus=_gpus(gres),
            gpus_used=_gpus(used),
        )
        for name, state, gres, used, reason in _rows(output, MACHINES)
    }
    return [*machines.values()]


def _gpus(gres: str) -> int:
    return sum(int(number) for number in _GPUS.findall(gres))


_START = re.compile(r"to start at (\S+)")


def parse_forecast(output: str, *, refused: bool) -> BatchForecast:
    """Read the answer of ``sbatch --test-only``; its times are those of this machine's clock zone."""
    match = _START.search(output)
    if match is not None:
        return BatchForecast(datetime.fromisoformat(match[1]).timestamp())
    text = " ".join(output.replace("allocation failure:", "").split()).removeprefix("sbatch: ")
    return BatchForecast(refusal=text if refused else "")

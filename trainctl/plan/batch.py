"""What a plan shows of batch systems: free resources, and when new runs would start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.plan.batch_facts import BatchRow
from trainctl.plan.placement import starting_changes
from trainctl.plan.values import Change, PlanInputs
from trainctl.plugin_api.scheduler import BatchForecast


def batch_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[BatchRow, ...]:
    """Return a row for each batch system that gets new runs."""
    jobs: dict[Address, list[tuple[Address, float | None]]] = {}
    for job in starting_changes(changes):
        cluster = job.job_spec.cluster_address
        if cluster in inputs.batch_systems:
            start = _forecast(inputs, job).start
            jobs.setdefault(cluster, []).append((job.address, start))
    return tuple(
        BatchRow(cluster, inputs.batch_systems[cluster].partitions, tuple(starts))
        for cluster, starts in jobs.items()
    )


def batch_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report batch systems that don't respond, and jobs that they could not start."""
    for cluster, facts in inputs.batch_systems.items():
        if facts.problem:
            yield warning(
                facts.problem,
                "The plan doesn't know what is free.",
                address=str(cluster),
                code="scheduler-unreachable",
            )
    for job in starting_changes(changes):
        refusal = _forecast(inputs, job).refusal
        if refusal:
            yield warning(
                f"{job.job_spec.cluster_address} could not start it now: {refusal}",
                "If no node can ever start it, change compute or max_duration of the job.",
                address=str(job.address),
                code="job-refused",
            )


def _forecast(inputs: PlanInputs, job: Change) -> BatchForecast:
    facts = inputs.batch_systems.get(job.job_spec.cluster_address)
    return facts.forecasts.get(job.address, BatchForecast()) if facts else BatchForecast()

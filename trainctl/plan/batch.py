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
    jobs: dict[Address, list[tuple[Address, BatchForecast]]] = {}
    for job in starting_changes(changes):
        cluster = job.job_spec.cluster_address
        if cluster in inputs.batch_systems:
            jobs.setdefault(cluster, []).append((job.address, _forecast(inputs, job)))
    return tuple(
        BatchRow(cluster, inputs.batch_systems[cluster].partitions, tuple(forecasts))
        for cluster, forecasts in jobs.items()
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
        forecast = _forecast(inputs, job)
        yield from _few_processors(job, forecast.cpus)
        if forecast.refusal:
            yield warning(
                f"{job.job_spec.cluster_address} could not start it now: {forecast.refusal}",
                "If no node can ever start it, change compute or max_duration of the job.",
                address=str(job.address),
                code="job-refused",
            )


def _few_processors(job: Change, cpus: int | None) -> Iterator[Diagnostic]:
    """Report a job with GPUs that leaves the number of processors to a batch system, and gets few."""
    compute = job.job_spec.compute
    gpus = compute.gpus or 0
    per_node = (cpus or 0) // compute.node_count
    if gpus and compute.cpu_count is None and 0 < per_node <= max(2, gpus):
        yield warning(
            f"{job.job_spec.cluster_address} would give it {per_node}"
            f" processor{'s' if per_node > 1 else ''} for {gpus} GPU{'s' if gpus > 1 else ''} per node",
            "Set compute.cpu_count: the default is that of the batch system, not all of a node.",
            address=str(job.address),
            code="few-processors",
        )


def _forecast(inputs: PlanInputs, job: Change) -> BatchForecast:
    facts = inputs.batch_systems.get(job.job_spec.cluster_address)
    return facts.forecasts.get(job.address, BatchForecast()) if facts else BatchForecast()

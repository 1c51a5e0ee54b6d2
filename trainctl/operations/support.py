"""What a manifest may say that this version can't do yet: refused when it is planned, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from trainctl.desired.values import Desired
from trainctl.jobs.environment import weights_variable
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.resource import Resource
from trainctl.spi import discovery


def unsupported(desired: Desired) -> list[Diagnostic]:
    """An error for each thing that can't be done, at the resource that asks for it."""
    providers = frozenset(discovery.names(discovery.PROVIDERS))
    found = list(_of_the_whole(desired))
    for resource in desired.resources.values():
        if resource.address.kind is Kind.CLUSTER:
            found += _of_cluster(resource, providers)
        elif resource.address.kind is Kind.JOB:
            found += _of_job(resource)
    return found


def _of_the_whole(desired: Desired) -> Iterator[Diagnostic]:
    url = desired.checkpoints.url
    if url is not None and not url.startswith(("file:", "s3:")):
        scheme = url.partition(":")[0]
        yield error(
            f"checkpoints can't be kept at {scheme}:// by this version",
            "Write file:///DIRECTORY or s3://BUCKET/PREFIX (with endpoint_url for other servers of S3's kind).",
            code="unsupported",
        )


def _of_cluster(cluster: Resource, providers: frozenset[str]) -> Iterator[Diagnostic]:
    if cluster.provider not in providers:
        detail = f"Installed: {', '.join(sorted(providers))}."
        yield _at(
            cluster,
            f"no provider plugin is called {cluster.provider!r}",
            detail,
            code="missing-provider",
        )
    shared = cluster.cluster_spec.cache.cluster
    if shared and not shared.dir:
        yield _at(
            cluster,
            "`cache.cluster` names no directory",
            "Write `cluster: {dir: /DIRECTORY}`, one that all nodes of the cluster see, or leave it out.",
            code="unsupported",
        )


def _of_job(job: Resource) -> Iterator[Diagnostic]:
    spec = job.job_spec
    if spec.in_container and (spec.runtime.venv or spec.runtime.requirements):
        detail = "Install what the job needs in its image, or set runtime.engine: host."
        summary = "runtime.venv and runtime.requirements are for jobs on the host"
        yield _at(job, summary, detail, code="host-only")
    yield from _shared_variables(job)


def _shared_variables(job: Resource) -> Iterator[Diagnostic]:
    """Names that differ in punctuation only would be one environment variable."""
    first: dict[str, Address] = {}
    for address in (weights.address for weights in job.job_spec.weights):
        other = first.setdefault(weights_variable(address), address)
        if other != address:
            detail = "Rename one of them: letters and digits tell them apart, punctuation does not."
            yield _at(
                job,
                f"{other} and {address} would both be {weights_variable(address)}",
                detail,
                code="shared-variable",
            )


def _at(resource: Resource, summary: str, detail: str, *, code: str) -> Diagnostic:
    return error(summary, detail, address=str(resource.address), where=resource.where, code=code)

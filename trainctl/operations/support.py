"""What a manifest may say that this version can't do yet: refused when it is planned, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from trainctl.desired.values import Desired
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.resource import Resource
from trainctl.spi import discovery


def unsupported(desired: Desired) -> list[Diagnostic]:
    """An error for each thing that can't be done, at the resource that asks for it."""
    providers = frozenset(discovery.names(discovery.PROVIDERS))
    found = [_on_desired(desired)]
    for resource in desired.resources.values():
        if resource.address.kind is Kind.CLUSTER and resource.provider not in providers:
            detail = f"Installed: {', '.join(sorted(providers))}."
            found.append(
                [_at(resource, f"no provider plugin is called {resource.provider!r}", detail)]
            )
        elif resource.address.kind is Kind.JOB:
            found.append(list(_of_job(resource)))
    return [one for some in found for one in some]


def _on_desired(desired: Desired) -> list[Diagnostic]:
    if desired.checkpoints_url and not desired.checkpoints_url.startswith("file:///"):
        return [
            error(
                "checkpoints are kept on this machine only",
                "Leave `checkpoints` out, or name file:///….",
            )
        ]
    return []


def _of_job(job: Resource) -> Iterator[Diagnostic]:
    image, compute = job.attributes.get("image"), job.attributes["compute"]
    if image:
        yield _at(
            job,
            "images are not supported by this version",
            "Leave `image` out: the job then runs on the host.",
        )
    if compute["node_count"] > 1:
        yield _at(
            job,
            "jobs on more than one node are not supported by this version",
            "Set compute.node_count: 1.",
        )


def _at(resource: Resource, summary: str, detail: str) -> Diagnostic:
    return error(summary, detail, address=str(resource.address), where=resource.where)

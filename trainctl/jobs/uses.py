"""Who uses which declared secret, and where it would go: the one list that plans are judged by and ``secrets check`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainctl.desired.values import Desired
from trainctl.jobs.destinations import of_bucket, of_registry, of_source
from trainctl.model.address import Kind
from trainctl.model.resource import Resource
from trainctl.model.trust import Destination


@dataclass(frozen=True, slots=True)
class Use:
    """One secret in one place. ``to`` is the server that receives it; None where the nodes of ``cluster`` do."""

    secret: str
    by: str
    purpose: str
    to: Destination | None = None
    cluster: str | None = None
    resource: Resource | None = None


def uses(desired: Desired, environ: Mapping[str, str]) -> Iterator[Use]:
    """Every use that the manifest makes of its secrets, by resource."""
    for resource in desired.resources.values():
        if resource.address.kind is Kind.WEIGHTS:
            yield from _of_source(resource, environ)
        elif resource.address.kind is Kind.JOB:
            yield from _of_job(resource)
    store = desired.checkpoints
    if store.secret is not None and store.url is not None:
        to = of_bucket(store.url, store.endpoint_url, environ)
        yield Use(store.secret, "checkpoints", "checkpoints", to)
    mirror = desired.mirror
    if mirror.secret is not None and mirror.url is not None:
        to = of_bucket(mirror.url, mirror.endpoint_url, environ)
        yield Use(mirror.secret, "mirror", "mirror", to)


def _of_source(resource: Resource, environ: Mapping[str, str]) -> Iterator[Use]:
    weights = resource.weights_spec
    if weights.auth and weights.auth.auth_secret_name:
        to, name = of_source(weights, environ), weights.auth.auth_secret_name
        yield Use(name, str(resource.address), "source", to, resource=resource)


def _of_job(resource: Resource) -> Iterator[Use]:
    job, by = resource.job_spec, str(resource.address)
    for name in sorted(set(job.runtime.secret_environment.values())):
        yield Use(name, by, "environment", cluster=job.cluster, resource=resource)
    auth = job.image.docker_auth if job.image else None
    if auth:
        for name in auth.secrets:
            yield Use(name, by, "registry", of_registry(auth), resource=resource)

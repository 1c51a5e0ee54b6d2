"""Who uses which declared secret, and where it would go: the one list that plans are judged by and ``secrets check`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainctl.desired.values import Desired
from trainctl.jobs.destinations import of_bucket, of_registry, of_source
from trainctl.jobs.environment import secret_environment
from trainctl.jobs.registry import registry_secrets
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
    auth = resource.attributes.get("auth")
    if auth and "auth_secret_name" in auth:
        to = of_source(resource.attributes, environ)
        yield Use(auth["auth_secret_name"], str(resource.address), "source", to, resource=resource)


def _of_job(resource: Resource) -> Iterator[Use]:
    attributes, by = resource.attributes, str(resource.address)
    cluster = str(attributes["cluster"])
    for name in sorted(set(secret_environment(attributes).values())):
        yield Use(name, by, "environment", cluster=cluster, resource=resource)
    auth = (attributes.get("image") or {}).get("docker_auth")
    if auth:
        for name in registry_secrets(auth):
            yield Use(name, by, "registry", of_registry(auth), resource=resource)

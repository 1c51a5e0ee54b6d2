"""Which declared secret is used where, and which server would receive it; whether its platform or the environment names that server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainctl.desired.values import Desired
from trainctl.errors import SourceError
from trainctl.jobs.registry import ECR, GOOGLES, registry_host
from trainctl.model.address import Kind
from trainctl.model.job_spec import DockerAuth
from trainctl.model.resource import Resource, WeightsSpec
from trainctl.model.source_uri import parse_source
from trainctl.model.trust import Destination, Host, host_of_url
from trainctl.objects.location import location_of

_HUB = "https://huggingface.co"
_REGISTRIES = frozenset(
    {"docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "nvcr.io", "quay.io"}
)
"""Registries for everybody's images: to one of them, a login for it gives nothing away."""

_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::[0-9]{1,5})?")


def of_source(weights: WeightsSpec, environ: Mapping[str, str]) -> Destination:
    """Who receives what opens a weights source."""
    source = parse_source(weights.source)
    if source.scheme == "https":
        return Destination(host_of_url(source.text))
    if source.scheme == "hf":
        return Destination(host_of_url(environ.get("HF_ENDPOINT") or _HUB), given=True)
    return of_bucket(source.text, weights.endpoint_url, environ)


def of_bucket(url: str, endpoint: str | None, environ: Mapping[str, str]) -> Destination:
    """Who receives what opens a bucket. ``endpoint`` is what the manifest names, None for whatever is usual."""
    try:
        place = location_of(url, endpoint, environ)
    except (SourceError, ValueError):  # told where the bucket is opened
        return Destination(Host(endpoint or url))
    return Destination(host_of_url(place.endpoint or f"https://{place.host}"), given=place.trusted)


def of_registry(auth: DockerAuth) -> Destination:
    """Who receives what ``docker_auth`` names, or what is made of it."""
    text = registry_host(auth.registry).lower()
    plain = _HOST.fullmatch(text)
    if plain is None:
        return Destination(Host(text))  # engines may read it otherwise than we would
    name = plain[1]
    own = {
        "AWS_IAM": ECR.fullmatch(name) is not None,
        "GCP_SERVICE_ACCOUNT_JSON": GOOGLES.fullmatch(name) is not None,
    }
    given = own.get(auth.auth_method, name in _REGISTRIES)
    return Destination(host_of_url(f"https://{text}"), given=given)


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

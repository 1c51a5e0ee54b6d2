"""Which declared secret is used where, and which server would receive it; whether its platform or the environment names that server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainctl.desired.values import DesiredState
from trainctl.errors import SourceError
from trainctl.jobs.registry import ECR_REGISTRY, GOOGLE_REGISTRY, registry_host
from trainctl.model.address import Kind
from trainctl.model.source_uri import parse_source
from trainctl.model.specs.job_spec import DockerAuthSpec
from trainctl.model.specs.resource import DesiredResource, WeightsSpec
from trainctl.model.trust import HostPattern, SecretDestination, host_of_url
from trainctl.objects.location import parse_bucket_location

_HUB = "https://huggingface.co"
_REGISTRIES = frozenset(
    {"docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "nvcr.io", "quay.io"}
)
"""Registries for everybody's images: to one of them, a login for it gives nothing away."""

_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::[0-9]{1,5})?")


def source_destination(weights: WeightsSpec, environ: Mapping[str, str]) -> SecretDestination:
    """Who receives what opens a weights source."""
    source = parse_source(weights.source)
    if source.scheme == "https":
        return SecretDestination(host_of_url(source.text))
    if source.scheme == "hf":
        return SecretDestination(host_of_url(environ.get("HF_ENDPOINT") or _HUB), given=True)
    return bucket_destination(source.text, weights.endpoint_url, environ)


def bucket_destination(
    url: str, endpoint: str | None, environ: Mapping[str, str]
) -> SecretDestination:
    """Who receives what opens a bucket. ``endpoint`` is what the manifest names, None for whatever is usual."""
    try:
        place = parse_bucket_location(url, endpoint, environ)
    except (SourceError, ValueError):  # told where the bucket is opened
        return SecretDestination(HostPattern(endpoint or url))
    return SecretDestination(
        host_of_url(place.endpoint or f"https://{place.host}"), given=place.trusted
    )


def registry_destination(auth: DockerAuthSpec) -> SecretDestination:
    """Who receives what ``docker_auth`` names, or what is made of it."""
    text = registry_host(auth.registry).lower()
    plain = _HOST.fullmatch(text)
    if plain is None:
        return SecretDestination(HostPattern(text))  # engines may read it otherwise than we would
    name = plain[1]
    own = {
        "AWS_IAM": ECR_REGISTRY.fullmatch(name) is not None,
        "GCP_SERVICE_ACCOUNT_JSON": GOOGLE_REGISTRY.fullmatch(name) is not None,
    }
    given = own.get(auth.auth_method, name in _REGISTRIES)
    return SecretDestination(host_of_url(f"https://{text}"), given=given)


@dataclass(frozen=True, slots=True)
class SecretUse:
    """One secret in one place. ``to`` is the server that receives it; None where the nodes of ``cluster`` do."""

    secret: str
    by: str
    purpose: str
    to: SecretDestination | None = None
    cluster: str | None = None
    resource: DesiredResource | None = None


def secret_uses(desired: DesiredState, environ: Mapping[str, str]) -> Iterator[SecretUse]:
    """Every use that the manifest makes of its secrets, by resource."""
    for resource in desired.resources.values():
        if resource.address.kind is Kind.WEIGHTS:
            yield from _of_source(resource, environ)
        elif resource.address.kind is Kind.JOB:
            yield from _of_job(resource)
    store = desired.checkpoints
    if store.secret is not None and store.url is not None:
        to = bucket_destination(store.url, store.endpoint_url, environ)
        yield SecretUse(store.secret, "checkpoints", "checkpoints", to)
    mirror = desired.mirror
    if mirror.secret is not None and mirror.url is not None:
        to = bucket_destination(mirror.url, mirror.endpoint_url, environ)
        yield SecretUse(mirror.secret, "mirror", "mirror", to)


def _of_source(resource: DesiredResource, environ: Mapping[str, str]) -> Iterator[SecretUse]:
    weights = resource.weights_spec
    if weights.auth and weights.auth.auth_secret_name:
        to, name = source_destination(weights, environ), weights.auth.auth_secret_name
        yield SecretUse(name, str(resource.address), "source", to, resource=resource)


def _of_job(resource: DesiredResource) -> Iterator[SecretUse]:
    job, by = resource.job_spec, str(resource.address)
    for name in sorted(set(job.runtime.secret_environment.values())):
        yield SecretUse(name, by, "environment", cluster=job.cluster, resource=resource)
    auth = job.image.docker_auth if job.image else None
    if auth:
        for name in auth.secrets:
            yield SecretUse(name, by, "registry", registry_destination(auth), resource=resource)

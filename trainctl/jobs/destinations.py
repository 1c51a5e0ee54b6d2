"""Who would receive a secret: the server that a source, a registry or a bucket means, and whether its platform or the environment names it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainctl.errors import SourceError
from trainctl.jobs.registry import ECR, GOOGLES, registry_host
from trainctl.model.job_spec import DockerAuth
from trainctl.model.resource import WeightsSpec
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

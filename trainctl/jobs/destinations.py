"""Who would receive a secret: the server that a source, a registry or a bucket means, and whether its platform or the environment names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainctl.jobs.registry import ECR, registry_host
from trainctl.model.source_uri import parse_source
from trainctl.model.trust import Destination, Host, host_of_url

_PLATFORMS = {
    "hf": "https://huggingface.co",
    "s3": "https://s3.amazonaws.com",
    "gs": "https://storage.googleapis.com",
    "r2": "https://r2.cloudflarestorage.com",
    "azure": "https://blob.core.windows.net",
}
"""Where each scheme's own servers are, or below which name."""
_ENDPOINTS = {
    "hf": ("HF_ENDPOINT",),
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "r2": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "azure": ("AZURE_STORAGE_ENDPOINT",),
}
"""Variables in which the environment names a scheme's server, the first that is set counts."""
_REGISTRIES = frozenset(
    {"docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "nvcr.io", "quay.io"}
)
"""Registries for everybody's images: to one of them, a login for it gives nothing away."""

_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::[0-9]{1,5})?")


def environment_endpoint(scheme: str, environ: Mapping[str, str]) -> str | None:
    """The server that the environment names for a scheme."""
    return next((environ[name] for name in _ENDPOINTS[scheme] if environ.get(name)), None)


def of_source(attributes: Mapping[str, Any], environ: Mapping[str, str]) -> Destination:
    """Who receives what opens a weights source."""
    source = parse_source(str(attributes["source"]))
    if source.scheme == "https":
        return Destination(host_of_url(source.text))
    endpoint = (attributes.get("auth") or {}).get("endpoint_url")
    return of_endpoint(source.scheme, endpoint, environ)


def of_endpoint(scheme: str, endpoint: str | None, environ: Mapping[str, str]) -> Destination:
    """Who receives what opens a bucket. ``endpoint`` is what the manifest names, None for whatever is usual."""
    usual = environment_endpoint(scheme, environ)
    if endpoint is None:
        return Destination(host_of_url(_as_url(usual or _PLATFORMS[scheme])), given=True)
    named = host_of_url(endpoint)
    return Destination(named, given=usual is not None and host_of_url(_as_url(usual)) == named)


def of_registry(auth: Mapping[str, Any]) -> Destination:
    """Who receives what ``docker_auth`` names, or what is made of it."""
    text = registry_host(str(auth["registry"])).lower()
    plain = _HOST.fullmatch(text)
    if plain is None:
        return Destination(Host(text))  # engines may read it otherwise than we would
    name = plain[1]
    own = {
        "AWS_IAM": ECR.fullmatch(name) is not None,
        "GCP_SERVICE_ACCOUNT_JSON": name == "gcr.io"
        or name.endswith((".gcr.io", "-docker.pkg.dev")),
    }
    given = own.get(str(auth["auth_method"]), name in _REGISTRIES)
    return Destination(host_of_url(f"https://{text}"), given=given)


def _as_url(text: str) -> str:
    return text if "://" in text else f"http://{text}"

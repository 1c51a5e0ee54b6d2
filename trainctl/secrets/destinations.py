"""Uses of declared secrets, and the hosts that receive them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.desired.values import DesiredState
from trainctl.errors import SourceError
from trainctl.model.address import Kind
from trainctl.model.specs.image import DockerAuth
from trainctl.model.specs.resource import DesiredResource, WeightsSpec
from trainctl.model.trust import HostPattern, SecretDestination, host_of_url

_HUB = "https://huggingface.co"
_REGISTRIES = frozenset(
    {"docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "nvcr.io", "quay.io"}
)
"""Public registries, trusted with logins to themselves."""

_HOST = compile_lazily(r"([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::[0-9]{1,5})?")


def source_destination(weights: WeightsSpec, environ: Mapping[str, str]) -> SecretDestination:
    """Return the host that receives the credential of a source."""
    scheme = weights.uri.scheme
    if scheme not in ("hf", "https"):
        return bucket_destination(weights.source, weights.endpoint_url, environ)
    if scheme == "hf":
        return SecretDestination(host_of_url(environ.get("HF_ENDPOINT") or _HUB), given=True)
    return SecretDestination(host_of_url(weights.source))


def bucket_destination(
    url: str, endpoint: str | None, environ: Mapping[str, str]
) -> SecretDestination:
    """Return the host that receives the credential of a bucket."""
    from trainctl.buckets.location import parse_bucket_location

    try:
        return parse_bucket_location(url, endpoint, environ).destination
    except (SourceError, ValueError):  # reported when the bucket is opened
        return SecretDestination(HostPattern(endpoint or url))


def registry_destination(auth: DockerAuth) -> SecretDestination:
    """Return the host that receives the login of ``docker_auth``."""
    from trainctl.secrets.registries import ECR_REGISTRY, GOOGLE_REGISTRY, registry_host

    text = registry_host(auth.registry).lower()
    match = _HOST.fullmatch(text)
    if match is None:
        return SecretDestination(HostPattern(text))  # engines may parse it differently
    name = match[1]
    trusted = {
        "AWS_IAM": ECR_REGISTRY.fullmatch(name) is not None,
        "GCP_SERVICE_ACCOUNT_JSON": GOOGLE_REGISTRY.fullmatch(name) is not None,
    }
    given = trusted.get(auth.auth_method, name in _REGISTRIES)
    return SecretDestination(host_of_url(f"https://{text}"), given=given)


@dataclass(frozen=True, slots=True)
class SecretUse:
    """One use of a secret; ``to`` is the host, None for the nodes of ``cluster``."""

    secret: str
    by: str
    purpose: str
    to: SecretDestination | None = None
    cluster: str | None = None
    resource: DesiredResource | None = None


def secret_uses(desired: DesiredState, environ: Mapping[str, str]) -> Iterator[SecretUse]:
    """Yield all uses of secrets in the manifest."""
    for resource in desired.external.values():
        by = str(resource.address)
        if resource.address.kind is Kind.WEIGHTS:
            weights = resource.weights_spec
            if weights.auth and weights.auth.auth_secret_name:
                to = source_destination(weights, environ)
                yield SecretUse(weights.auth.auth_secret_name, by, "source", to, resource=resource)
        elif resource.address.kind is Kind.JOB:
            job = resource.job_spec
            for name in sorted(set(job.runtime.secret_environment.values())):
                yield SecretUse(name, by, "environment", cluster=job.cluster, resource=resource)
            auth = job.image.docker_auth if job.image else None
            if auth:
                for name in auth.secrets:
                    to = registry_destination(auth)
                    yield SecretUse(name, by, "registry", to, resource=resource)
    for name, location in (("checkpoints", desired.checkpoints), ("mirror", desired.mirror)):
        if location.secret is not None and location.url is not None:
            to = bucket_destination(location.url, location.endpoint_url, environ)
            yield SecretUse(location.secret, name, name, to)

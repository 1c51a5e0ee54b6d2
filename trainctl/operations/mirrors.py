"""Locate and open the mirror: declared, on the first host, or local."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trainctl.desired.values import DesiredState
from trainctl.errors import (
    NodeError,
    PermissionDenied,
    SourceError,
    TrainctlError,
    UnknownOnNode,
    UsageError,
)
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.location import StoreLocation
from trainctl.model.specs.resource import WeightsSpec
from trainctl.operations.directories import data_home, directory_of
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import ClusterSettings, Provider
from trainctl.resources.agents import nodes_of, recorded_or_planned
from trainctl.secrets.bucket_credentials import explain_denial
from trainctl.secrets.resolver import SecretResolver

if TYPE_CHECKING:  # slow to import
    from trainctl.base.retry import RetryPolicy
    from trainctl.plugin_api.sources import SourceCredential
    from trainctl.weights.mirrors import HostMirrorLocation, Mirror

Providers = Callable[[str], Provider]
RecordLookup = Callable[[Address], RecordedResource | None]


def mirror_url(
    desired: DesiredState | None, providers: Providers, environ: Mapping[str, str]
) -> str:
    """Return the mirror's URL: ``file:``, a bucket, or ``node://CLUSTER[/PATH]``."""
    if desired is not None and desired.mirror.url:
        return desired.mirror.url
    if desired is not None:
        installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
        for name in desired.clusters:
            cluster = desired.resources.get(Address(Kind.CLUSTER, name))
            if cluster is not None and cluster.provider in installed:
                capabilities = providers(cluster.provider).capabilities
                if not (capabilities.shares_disk_with_client or capabilities.creates_machines):
                    return f"node://{name}"  # the first cluster of existing hosts
    return (data_home(environ) / "mirror").as_uri()


def locate_host(
    url: str,
    desired: DesiredState | None,
    providers: Providers,
    recorded: RecordLookup,
    *,
    asks: bool = True,
) -> HostMirrorLocation:
    """Return the host and directory of a ``node:`` URL.

    Queries the host if it is not a node yet; with ``asks=False`` raises NodeError instead.
    """
    from trainctl.weights.mirrors import HostMirrorLocation

    name, slash, path = url.removeprefix("node://").partition("/")
    directory = f"{slash}{unquote(path)}".rstrip("/") or None
    address = Address(Kind.CLUSTER, name)
    known = recorded(address)
    cluster = desired.resources.get(address) if desired else None
    if cluster is None:
        nodes = nodes_of(known)
        if known is None or not nodes:
            raise UsageError(
                f"mirror {url!r}: cluster {name} not found",
                "Use a cluster that the manifest declares.",
                code="undeclared-name",
            )
        return HostMirrorLocation(known.provider, nodes[0], directory)
    provider = providers(cluster.provider)
    declared = ClusterSettings(name, cluster.cluster_spec.settings)
    planned = next(iter(provider.plan(declared)), None)
    if planned is None:
        raise NodeError(f"no node of cluster {name} can host the mirror")
    node = recorded_or_planned(planned, known)
    if not node.key and known and node.name in known.cluster_spec.forgotten:
        raise UnknownOnNode(
            f"{node.id}, the host of the mirror, was removed from the state",
            f"Apply {address} to add it again, or list another host first in the manifest.",
        )
    if not (node.key or asks):
        raise NodeError(f"the directories of {node.name} are not known yet")
    return HostMirrorLocation(
        cluster.provider, node if node.key else provider.locate(declared, node), directory
    )


def is_on_host(url: str) -> bool:
    """Whether the URL names a directory of a cluster's host."""
    return url.startswith("node://")


def is_in_bucket(url: str) -> bool:
    """Whether the URL names a bucket."""
    from trainctl.buckets.location import SCHEMES

    return url.partition("://")[0] in SCHEMES


def normalize_endpoint(endpoint: str | None) -> str:
    """Normalize an endpoint URL for comparison."""
    return (endpoint or "").strip().rstrip("/")


def is_present(url: str) -> bool:
    """Return False for a missing or empty directory on this machine."""
    if is_on_host(url) or is_in_bucket(url):
        return True
    try:
        return any(directory_of(url, "mirror").iterdir())
    except OSError:
        return False


def bucket_mirror(
    location: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str], retry: RetryPolicy
) -> Mirror:
    """Open the mirror in a bucket, with its secret or default credentials."""
    from trainctl.buckets.bucket import BucketObjects
    from trainctl.store.keys import is_store_key
    from trainctl.store.store import MirrorStore
    from trainctl.weights.mirrors import DirectMirror

    access = BucketAccess(location, secrets)
    objects = BucketObjects(
        access.url,
        location.endpoint_url,
        access.credential,
        retry,
        environ=environ,
        is_own=is_store_key,
        refusal=access.refusal,
    )
    return DirectMirror(MirrorStore(objects, retry), normalize_endpoint(location.endpoint_url))


class BucketAccess:
    """Credential of a bucket of the mirror or a state, its ``purpose``."""

    def __init__(
        self, location: StoreLocation, secrets: SecretResolver, purpose: str = "mirror"
    ) -> None:
        self._purpose = purpose
        self.url = str(location.url).rstrip("/")
        method = "CUSTOM_SECRET" if location.secret else None
        auth = SourceAuthSpec(method, location.secret, endpoint_url=location.endpoint_url)
        self._place = WeightsSpec(self.url, auth=auth)
        self._secrets = secrets
        self._used: SourceCredential | None = None

    def credential(self) -> SourceCredential | None:
        """Return the credential; PermissionDenied if trust forbids the secret."""
        try:
            self._used = self._secrets.bucket_credential(self._place)
        except PermissionDenied as error:
            raise self._denied(error) from None
        return self._used

    def refusal(self, error: SourceError) -> TrainctlError:
        """Explain why the source refused the credential."""
        explained = explain_denial(error, self._used)
        return explained if explained is error else self._denied(explained)

    def _denied(self, error: TrainctlError) -> PermissionDenied:
        return PermissionDenied(
            f"{self._purpose} {self.url}: {error.summary}", error.detail, code=error.code
        )

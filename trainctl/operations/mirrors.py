"""The mirror that is used: the manifest's, else on the first host of its first cluster of hosts, else a directory here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trainctl.base.retry import RetryPolicy
from trainctl.desired.values import DesiredState, StoreLocation
from trainctl.errors import (
    NodeError,
    PermissionDenied,
    SourceError,
    TrainctlError,
    UnknownOnNode,
    UsageError,
)
from trainctl.jobs.bucket_credentials import explain_denial
from trainctl.jobs.secrets import SecretResolver
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import MirrorSite
from trainctl.model.specs.resource import DesiredResource, SourceAuthSpec, WeightsSpec
from trainctl.objects.location import SCHEMES
from trainctl.operations.directories import data_home, directory_of
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import Provider
from trainctl.resources.agents import nodes_of, recorded_or_planned
from trainctl.resources.clusters import provider_cluster
from trainctl.weights.mirrors import HostMirrorLocation

if TYPE_CHECKING:  # heavy
    from trainctl.plugin_api.sources import SourceCredential
    from trainctl.weights.mirrors import Mirror

Providers = Callable[[str], Provider]
RecordLookup = Callable[[Address], RecordedResource | None]


def mirror_url(
    desired: DesiredState | None, providers: Providers, environ: Mapping[str, str]
) -> str:
    """Where the mirror is: ``file:///DIRECTORY``, a bucket, or ``node://CLUSTER/DIRECTORY``, without a directory for the usual one."""
    if desired is not None and desired.mirror.url:
        return desired.mirror.url
    hosts = _first_host_cluster(desired, providers) if desired is not None else None
    if hosts is not None:
        return f"node://{hosts.address.name}"
    return (data_home(environ) / "mirror").as_uri()


def _first_host_cluster(desired: DesiredState, providers: Providers) -> DesiredResource | None:
    """The cluster declared first whose machines exist already and don't share the operator's disk."""
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    for name in desired.clusters:
        cluster = desired.resources.get(Address(Kind.CLUSTER, name))
        if cluster is not None and cluster.provider in installed:
            can = providers(cluster.provider).capabilities
            if not (can.shares_disk_with_client or can.creates_machines):
                return cluster
    return None


def locate_host(
    url: str,
    desired: DesiredState | None,
    providers: Providers,
    recorded: RecordLookup,
    *,
    asks: bool = True,
) -> HostMirrorLocation:
    """The host and the directory of a ``node:`` URL. The host is asked only if it isn't a node yet; NodeError if it would have to be and not ``asks``."""
    name, slash, path = url.removeprefix("node://").partition("/")
    directory = f"{slash}{unquote(path)}".rstrip("/") or None
    address = Address(Kind.CLUSTER, name)
    known = recorded(address)
    cluster = desired.resources.get(address) if desired else None
    if cluster is None:
        nodes = nodes_of(known) if known else ()
        if known is None or not nodes:
            raise UsageError(
                f"mirror {url!r}: cluster {name} not found",
                "Use a cluster that the manifest declares.",
                code="undeclared-name",
            )
        return HostMirrorLocation(known.provider, nodes[0], directory)
    provider = providers(cluster.provider)
    declared = provider_cluster(name, cluster.cluster_spec)
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


def mirror_host_site(
    url: str, desired: DesiredState | None, providers: Providers, recorded: RecordLookup
) -> MirrorSite:
    """Where a ``node:`` URL leads as far as manifest and state tell: to no directory where only its host does."""
    with contextlib.suppress(TrainctlError):
        return MirrorSite(locate_host(url, desired, providers, recorded, asks=False).url)
    return MirrorSite(unquote(url).rstrip("/"))


def is_on_host(url: str) -> bool:
    """Whether the URL names a directory of a cluster's host."""
    return url.startswith("node://")


def is_in_bucket(url: str) -> bool:
    """Whether the URL names a bucket."""
    return url.partition("://")[0] in SCHEMES


def credentials_at(site: MirrorSite, kept: StoreLocation) -> StoreLocation:
    """The same for another place: a bucket of that scheme is opened by the same secret, if that may go to its server."""
    alike = (kept.url or "").partition("://")[0] == site.scheme
    return StoreLocation(site.url, site.endpoint or None, kept.secret if alike else None)


def normalize_endpoint(endpoint: str | None) -> str:
    """A server as it is compared with others."""
    return (endpoint or "").strip().rstrip("/")


def is_present(url: str) -> bool:
    """False for a directory that isn't on this machine, or is empty, as where a disk isn't mounted; of others only asking tells."""
    if is_on_host(url) or is_in_bucket(url):
        return True
    try:
        return any(directory_of(url, "mirror").iterdir())
    except OSError:
        return False


def directory_mirror(directory: Path, retry: RetryPolicy) -> Mirror:
    """The mirror in a directory of this machine."""
    from trainctl.store.backends.directory import DirectoryObjects
    from trainctl.store.store import MirrorStore
    from trainctl.weights.mirrors import DirectMirror

    return DirectMirror(MirrorStore(DirectoryObjects(directory), retry))


def bucket_mirror(
    kept: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str], retry: RetryPolicy
) -> Mirror:
    """The mirror in a bucket. Its own secret opens it when it is first used, else its platform's usual credential."""
    from trainctl.objects.bucket_store import open_bucket_store
    from trainctl.store.keys import is_store_key
    from trainctl.store.store import MirrorStore
    from trainctl.weights.mirrors import DirectMirror

    access = _BucketAccess(kept, secrets)
    objects = open_bucket_store(
        access.url,
        kept.endpoint_url,
        access.credential,
        retry,
        environ=environ,
        is_own=is_store_key,
        refusal=access.refusal,
    )
    return DirectMirror(MirrorStore(objects, retry), normalize_endpoint(kept.endpoint_url))


class _BucketAccess:
    """The credential that opens a mirror's bucket."""

    def __init__(self, kept: StoreLocation, secrets: SecretResolver) -> None:
        self.url = str(kept.url).rstrip("/")
        method = "CUSTOM_SECRET" if kept.secret else None
        auth = SourceAuthSpec(method, kept.secret, endpoint_url=kept.endpoint_url)
        self._place = WeightsSpec(self.url, auth=auth)
        self._secrets = secrets
        self._used: SourceCredential | None = None

    def credential(self) -> SourceCredential | None:
        """Forbidden if the declared secret may not go to this bucket."""
        try:
            declared = self._secrets.declared_credential(self._place)
        except PermissionDenied as error:
            raise self._mirror_error(error) from None
        self._used = declared or self._secrets.usual_credential(self._place)
        return self._used

    def refusal(self, error: SourceError) -> TrainctlError:
        """See ``bucket_credentials.refusal``."""
        refused = explain_denial(error, self._used)
        return refused if refused is error else self._mirror_error(refused)

    def _mirror_error(self, error: TrainctlError) -> PermissionDenied:
        return PermissionDenied(
            f"mirror {self.url}: {error.summary}", error.detail, code=error.code
        )

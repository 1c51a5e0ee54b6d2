"""Which mirror is used: the one that the manifest names, else the first host of its first cluster of hosts, else a directory here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from trainctl.desired.values import Desired
from trainctl.errors import NodeError, NodeForgot, UsageError
from trainctl.ledger.state import Recorded
from trainctl.model.address import Address, Kind
from trainctl.model.resource import Resource
from trainctl.operations.places import data_home
from trainctl.resources.agents import as_made, nodes_of
from trainctl.resources.clusters import section
from trainctl.spi import discovery
from trainctl.spi.provider import Provider
from trainctl.weights.mirror.place import Place

Providers = Callable[[str], Provider]
Recordeds = Callable[[Address], Recorded | None]


def mirror_url(desired: Desired | None, providers: Providers, environ: Mapping[str, str]) -> str:
    """Where the mirror is: ``file:///DIRECTORY``, or ``node://CLUSTER/DIRECTORY``, without a directory for the usual one."""
    if desired is not None and desired.mirror_url:
        return desired.mirror_url
    hosts = _first_hosts(desired, providers) if desired is not None else None
    if hosts is not None:
        return f"node://{hosts.address.name}"
    return (data_home(environ) / "mirror").as_uri()


def _first_hosts(desired: Desired, providers: Providers) -> Resource | None:
    """The cluster declared first whose machines exist already and don't share the operator's disk."""
    installed = frozenset(discovery.names(discovery.PROVIDERS))
    for name in desired.clusters:
        cluster = desired.resources.get(Address(Kind.CLUSTER, name))
        if cluster is not None and cluster.provider in installed:
            can = providers(cluster.provider).capabilities
            if not (can.shares_disk_with_operator or can.creates_machines):
                return cluster
    return None


def place_of(url: str, desired: Desired | None, providers: Providers, recorded: Recordeds) -> Place:
    """The host and the directory of a ``node:`` URL; asks the host only if nobody made a node of it yet."""
    parts = urlsplit(url)
    name, path = parts.netloc, unquote(parts.path).rstrip("/") or None
    address = Address(Kind.CLUSTER, name)
    known = recorded(address)
    cluster = desired.resources.get(address) if desired else None
    if cluster is None:
        nodes = nodes_of(known) if known else ()
        if known is None or not nodes:
            raise UsageError(
                f"mirror {url!r}: there is no cluster {name}",
                "Name one that the manifest declares.",
                code="undeclared-name",
            )
        return Place(known.provider, nodes[0], path)
    provider = providers(cluster.provider)
    declared = section(name, cluster.attributes)
    planned = next(iter(provider.plan(declared)), None)
    if planned is None:
        raise NodeError(f"cluster {name} has no node that could keep the mirror")
    node = as_made(planned, known)
    if not node.key and known and node.name in known.attributes.get("forgotten", ()):
        raise NodeForgot(
            f"{node.id}, which keeps the mirror, was forgotten",
            f"Apply {address} to have it again, or name another host first in the manifest.",
        )
    return Place(cluster.provider, node if node.key else provider.locate(declared, node), path)


def is_on_a_host(url: str) -> bool:
    """Whether the URL names a directory of a cluster's host."""
    return url.startswith("node://")

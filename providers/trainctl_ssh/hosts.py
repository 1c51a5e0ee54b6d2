"""Hosts as a cluster section declares them, and what it takes to log in to one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainctl.plugin_api.provider import ClusterSettings, Node

CONNECT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class SshLogin:
    """How a host is reached; what is empty or None is left to the user's own configuration of ssh.

    ``connect_timeout`` is in seconds. ``host_key`` is ``TYPE BASE64``: the only key that the host may have.
    """

    address: str
    user: str = ""
    port: int | None = None
    identity_file: str = ""
    jump: str = ""
    host_key: str = ""
    connect_timeout: int = CONNECT_SECONDS

    @property
    def details(self) -> dict[str, Any]:
        """The form kept in the state with a node: no key material, only where to find it."""
        return {name: value for name, value in asdict(self).items() if value and name != "address"}


@dataclass(frozen=True, slots=True)
class SshHost:
    """One host of a cluster. ``python`` and ``dir`` are as declared, empty where they are to be found out; ``ports`` as ``FIRST-LAST``."""

    name: str
    login: SshLogin
    python: str = ""
    dir: str = ""
    gpus: int | None = None
    price_per_hour: float | None = None
    ports: str = ""


def cluster_hosts(cluster: ClusterSettings) -> tuple[SshHost, ...]:
    """The hosts in the order declared, each with what the cluster says for all of them."""
    return tuple(_hosts(cluster))


def _hosts(cluster: ClusterSettings) -> Iterator[SshHost]:
    shared: Mapping[str, Any] = cluster.settings
    for declared in shared.get("hosts") or ():
        host: Mapping[str, Any] = {"name": declared} if isinstance(declared, str) else declared
        own = {**shared, **host}
        address = str(host.get("address") or host.get("name"))
        login = SshLogin(
            address=address,
            user=str(own.get("user") or ""),
            port=own.get("port"),
            identity_file=str(own.get("identity_file") or ""),
            jump=str(own.get("jump") or ""),
            host_key=" ".join(str(host.get("host_key") or "").split()[:2]),  # without its comment
            connect_timeout=int(own.get("connect_timeout") or CONNECT_SECONDS),
        )
        name = str(host.get("name") or address)
        yield SshHost(
            name,
            login,
            str(host.get("python") or ""),
            str(host.get("dir") or ""),
            host.get("gpus"),
            host.get("price_per_hour"),
            str(own.get("ports") or ""),
        )


def node_login(node: Node) -> SshLogin:
    """How a node is reached, from what the state keeps of it."""
    known = {
        name: node.details[name] for name in SshLogin.__dataclass_fields__ if name in node.details
    }
    return SshLogin(address=node.address, **known)

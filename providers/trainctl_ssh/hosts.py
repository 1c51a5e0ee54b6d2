"""Hosts: as declared in a cluster section, their logins, and paths found on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainctl.errors import NodeError
from trainctl.plugin_api.provider import ClusterSettings, Node, ResourceStatus, Transport
from trainctl.remote.responses import printable_tail

CONNECT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class SshLogin:
    """How to log in to a host; empty members are left to the user's SSH configuration.

    ``connect_timeout`` is in seconds. ``host_key``: ``TYPE BASE64``, the only accepted key. ``identity_only``: offer no other
    key than ``identity_file``, as servers refuse a login after a few keys.
    """

    address: str
    user: str = ""
    port: int | None = None
    identity_file: str = ""
    identity_only: bool = False
    jump: str = ""
    host_key: str = ""
    connect_timeout: int = CONNECT_SECONDS

    @property
    def details(self) -> dict[str, Any]:
        """The members stored in the state; no key material, only paths."""
        return {name: value for name, value in asdict(self).items() if value and name != "address"}

    @property
    def options(self) -> dict[str, str]:
        """Options of ssh_config(5) for the login; empty members are left to the user's configuration."""
        options = {
            "HostName": self.address,
            "User": self.user,
            "Port": str(self.port or ""),
            "IdentityFile": self.identity_file,
            "IdentitiesOnly": "yes" if self.identity_only else "",
            "ProxyJump": self.jump,
        }
        if self.host_key:
            pin = {"HostKeyAlias": "trainctl", "StrictHostKeyChecking": "yes"}
            pin["KnownHostsCommand"] = f"/bin/echo trainctl {self.host_key}"
            options |= {**pin, "UserKnownHostsFile": "none", "GlobalKnownHostsFile": "none"}
        return {name: value for name, value in options.items() if value}


@dataclass(frozen=True, slots=True)
class SshHost:
    """One host of a cluster; ``python`` and ``dir`` are empty unless declared."""

    name: str
    login: SshLogin
    python: str = ""
    dir: str = ""
    gpus: int | None = None
    price_per_hour: float | None = None
    ports: str = ""


def cluster_hosts(cluster: ClusterSettings) -> tuple[SshHost, ...]:
    """Return the hosts in declared order, with the cluster's settings applied."""
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
    """Return a node's login from its state."""
    known = {
        name: node.details[name] for name in SshLogin.__dataclass_fields__ if name in node.details
    }
    return SshLogin(address=node.address, **known)


_CANDIDATES = (
    "python3",
    *(f"python3.{minor}" for minor in range(8, 15)),
    "~/miniconda3/bin/python",
    "~/miniforge3/bin/python",
    "/opt/conda/bin/python",
)
_SECONDS = 60.0
_DISCOVERY_SCRIPT = r"""
printf "home\t%s\n" "$HOME"
for one do
  case $one in "~/"*) one=$HOME/${one#"~/"};; esac
  said=$("$one" -I -c 'import sys; print("%d.%d.%d\t%s" % (sys.version_info[:3] + (sys.executable,)))' 2>/dev/null) || continue
  printf "python\t%s\t%s\n" "$said" "$one"
  case $said in 3.[89].*|3.[1-9][0-9].*) exit 0;; esac
done
exit 0
"""


_STAT = """\
said=$(LC_ALL=C ls -d -- "$1" 2>&1 >/dev/null) && echo present && exit
case $said in *": No such file or directory" | *": Not a directory") echo missing;; *) echo forbidden;; esac
"""
"""Only ENOENT and ENOTDIR mean missing; ``ls`` prints the C library's texts."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Absolute paths on one host, see Node."""

    root: str
    data: str
    python: str


def find_host_paths(transport: Transport, host: SshHost, node_label: str) -> HostPaths:
    """Query the host; NodeError without a supported Python."""
    candidates = (host.python,) if host.python else _CANDIDATES
    output = transport.run(["sh", "-c", _DISCOVERY_SCRIPT, "sh", *candidates], timeout=_SECONDS)
    home, pythons = "", []
    for line in output.stdout.decode(errors="surrogateescape").splitlines():
        kind, _, rest = line.partition("\t")
        if kind == "home":
            home = rest
        elif kind == "python":
            pythons.append(rest.split("\t"))
    if not home.startswith("/"):
        raise NodeError(
            f"{node_label} has no home directory",
            printable_tail(output.stderr) or "Set HOME for this user on the host.",
        )
    supported = [parts for parts in pythons if len(parts) == 3 and _is_supported_python(parts[0])]
    if not supported:
        raise _no_python_error(node_label, host, pythons)
    directory = host.dir.rstrip("/") or "~/.cache/trainctl"
    root = home.rstrip("/") + directory[1:] if directory.startswith("~/") else directory
    data = f"{root}/data" if host.dir else f"{home.rstrip('/')}/.local/share/trainctl"
    return HostPaths(root, data, supported[0][1])


def find_presence(transport: Transport, path: str, node_label: str) -> ResourceStatus:
    """Return whether a file exists, without starting Python; NodeError if unclear."""
    output = transport.run(["sh", "-c", _STAT, "sh", path], timeout=_SECONDS)
    try:
        return ResourceStatus(output.stdout.decode(errors="replace").strip())
    except ValueError:
        raise NodeError(
            f"{node_label} cannot inspect its files", printable_tail(output.stderr)
        ) from None


def _is_supported_python(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= (3, 8)


def _no_python_error(node_label: str, host: SshHost, pythons: list[list[str]]) -> NodeError:
    versions = ", ".join(f"{parts[-1]} is {parts[0]}" for parts in pythons if len(parts) == 3)
    if host.python:
        return NodeError(
            f"{node_label}: {host.python} is not Python 3.8 or newer",
            f"{versions or 'It does not run'}. Correct python of the host.",
            code="unsupported-node-python",
        )
    return NodeError(
        f"{node_label} has no Python 3.8 or newer",
        f"{versions or 'None was found'}. Tried {', '.join(_CANDIDATES)}. Set python of the host to its path.",
        code="unsupported-node-python",
    )

"""Hosts: settings in a cluster section with their schema and checks, logins, and paths found on them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import asdict, dataclass, fields
from trainctl.errors import NodeError
from trainctl.plugin_api.provider import (
    ClusterSettings,
    Node,
    ResourceStatus,
    SettingsProblem,
    Transport,
    integer_schema,
    text_schema,
)
from trainctl.remote.responses import printable_tail

CONNECT_SECONDS = 10
_INHERITED = ("user", "port", "identity_file", "jump", "connect_timeout")
"""Settings of a cluster that its hosts inherit."""


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


_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)"
_ADDRESS = r"^([A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,})$(?!\n)"
_USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$(?!\n)"
_JUMP = r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,+\[\]-]*$(?!\n)"
_FILE = r"^[^-\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)"
DIRECTORY = r"^(/|~/)[^\x00-\x1f\x7f]*$(?!\n)"
_PORTS = r"^[0-9]{1,5}-[0-9]{1,5}$(?!\n)"
_KEY = r"^[a-z][A-Za-z0-9@.-]* +[A-Za-z0-9+/]+=*( +[^\x00-\x1f\x7f]*)?$(?!\n)"


_SHARED: JsonObject = {
    "user": text_schema(_USER, "Login name; default: that of the SSH configuration."),
    "port": integer_schema("Port of sshd.", maximum=65535),
    "identity_file": text_schema(_FILE, "Private key for the login, a path on the client."),
    "jump": text_schema(_JUMP, "Jump hosts, as for ssh -J: user@host:port, separated by commas."),
    "ports": text_schema(
        _PORTS,
        "Ports that other hosts can connect to through a firewall, as FIRST-LAST; default: any.",
    ),
}
HOST: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "anyOf": [{"required": ["name"]}, {"required": ["address"]}],
    "description": "A host: a name or an address, or both, and its settings.",
    "properties": {
        "name": text_schema(_NAME, "Name of the node; default: its address."),
        "address": text_schema(_ADDRESS, "Host name, IP address or alias of the SSH configuration, without port."),
        **_SHARED,
        "host_key": text_schema(_KEY, "Public key of the host, TYPE BASE64 as printed by ssh-keyscan; no other is accepted."),
        "python": text_schema(DIRECTORY, "Python 3.8 or newer: an absolute path, or one below ~/."),
        "dir": text_schema(DIRECTORY, "Directory of trainctl on the host, an absolute path or one below ~/; default: ~/.cache/trainctl."),
        "gpus": integer_schema("Number of GPUs that jobs may use; default: all that the host reports.", minimum=0),
        "price_per_hour": {"type": "number", "minimum": 0, "description": "Cost of the host per hour."},
    },
}  # fmt: skip


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    name = text_schema(_ADDRESS, "Name or address of a host, without user and port.")
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["hosts"],
        "properties": {
            **_SHARED,
            "connect_timeout": integer_schema(
                "Connection timeout in seconds.", maximum=600, default=CONNECT_SECONDS
            ),
            "hosts": {
                "type": "array",
                "minItems": 1,
                "items": {"if": {"type": "string"}, "then": name, "else": HOST},
                "description": "Hosts: names, or mappings with settings.",
            },
        },
    }


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield duplicate hosts, invalid keys and invalid port ranges."""
    hosts = [*cluster_hosts(cluster)]
    ports = str(cluster.settings.get("ports") or "")
    yield from _range_problems(ports, "ports")
    seen: dict[object, int] = {}
    for number, (host, directory) in enumerate(hosts):
        login = node_login(host)
        if host.ports != ports:
            yield from _range_problems(host.ports, "hosts", number, "ports")
        if login.host_key and not _is_key(login.host_key):
            yield SettingsProblem(
                ("hosts", number, "host_key"),
                "host_key is not a public key",
                "Use TYPE and base64, as printed by ssh-keyscan: ssh-ed25519 AAAA…",
            )
        for identity, problem, fix in (
            (host.name, f"duplicate host name {host.name!r}", "Set a different name for each."),
            (
                (login.address, login.port, login.user, directory),
                f"duplicate host {login.address!r}",
                "Remove one, or set a different dir for each.",
            ),
        ):
            first = seen.setdefault(identity, number)
            if first != number:
                yield SettingsProblem(("hosts", number), f"{problem} (hosts[{first}])", fix)
                break


def _range_problems(ports: str, *path: str | int) -> Iterator[SettingsProblem]:
    """Yield a problem unless a range is empty or holds unprivileged ports only."""
    first, _, last = (ports or "1024-65535").partition("-")
    if not 1024 <= int(first) <= int(last) <= 65535:
        yield SettingsProblem(
            path,
            "ports is not a range of unprivileged ports",
            "Use FIRST-LAST between 1024 and 65535, for example 29000-29100.",
        )


def _is_key(text: str) -> bool:
    """Check the base64 by RFC 4253, 6.6: it begins with the type and its length."""
    kind, _, encoded = text.partition(" ")
    try:
        blob = base64.b64decode(encoded, validate=True)
    except ValueError:
        return False
    return blob[:4] == len(kind).to_bytes(4, "big") and blob[4 : 4 + len(kind)] == kind.encode()


def cluster_hosts(cluster: ClusterSettings) -> Iterator[tuple[Node, str]]:
    """Yield the planned nodes in declared order, each with the ``dir`` of its host; empty unless declared."""
    shared: Mapping[str, Any] = cluster.settings
    for declared in shared.get("hosts") or ():
        host: Mapping[str, Any] = {"name": declared} if isinstance(declared, str) else declared
        own = {**shared, **host}
        address = str(host.get("address") or host.get("name"))
        login = SshLogin(
            address,
            host_key=" ".join(str(host.get("host_key") or "").split()[:2]),  # without its comment
            **{name: own[name] for name in _INHERITED if own.get(name)},
        )
        node = Node(
            cluster.name,
            str(host.get("name") or address),
            address,
            python=str(host.get("python") or ""),
            gpus=host.get("gpus"),
            details=login.details,
            price_per_hour=host.get("price_per_hour"),
            ports=str(own.get("ports") or ""),
        )
        yield node, str(host.get("dir") or "")


def node_login(node: Node) -> SshLogin:
    """Return a node's login from its state."""
    names = [each.name for each in fields(SshLogin)]
    known = {name: node.details[name] for name in names if name in node.details}
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
for python do
  case $python in "~/"*) python=$HOME/${python#"~/"};; esac
  "$python" -I -c 'import sys
version = sys.version_info[:3]
if version >= (3, 8): print("python\t" + sys.executable)
else: print("old\t%s is %d.%d.%d" % ((sys.argv[1],) + version)); sys.exit(1)' "$python" 2>/dev/null && break
done
exit 0
"""


_STAT = """\
error=$(LC_ALL=C ls -d -- "$1" 2>&1 >/dev/null) && echo present && exit
case $error in *": No such file or directory" | *": Not a directory") echo missing;; *) echo forbidden;; esac
"""
"""Only ENOENT and ENOTDIR mean missing; ``ls`` prints the C library's texts."""


def find_host_paths(transport: Transport, node: Node, directory: str = "") -> dict[str, Any]:
    """Return ``root``, ``data`` and ``python`` of a planned node; NodeError without a supported Python.

    ``directory`` is the ``dir`` of its host; empty: the default.
    """
    candidates = (node.python,) if node.python else _CANDIDATES
    output = transport.run(["sh", "-c", _DISCOVERY_SCRIPT, "sh", *candidates], timeout=_SECONDS)
    found: dict[str, list[str]] = {"home": [""], "old": [], "python": []}
    for line in output.stdout.decode(errors="surrogateescape").splitlines():
        kind, _, rest = line.partition("\t")
        found.get(kind, []).append(rest)
    home = found["home"][-1]
    if not home.startswith("/"):
        raise NodeError(
            f"{node.id} has no home directory",
            printable_tail(output.stderr) or "Set HOME for this user on the host.",
        )
    if not found["python"]:
        raise NodeError(
            f"{node.id} has no Python 3.8 or newer",
            f"{', '.join(found['old']) or 'None was found'}. Tried {', '.join(candidates)}. Set python of the host to its path.",
            code="unsupported-node-python",
        )
    path = directory.rstrip("/") or "~/.cache/trainctl"
    root = home.rstrip("/") + path[1:] if path.startswith("~/") else path
    data = f"{root}/data" if directory else f"{home.rstrip('/')}/.local/share/trainctl"
    return {"root": root, "data": data, "python": found["python"][-1]}


def find_presence(transport: Transport, path: str, node_label: str) -> ResourceStatus:
    """Return whether a file exists, without starting Python; NodeError if unclear."""
    output = transport.run(["sh", "-c", _STAT, "sh", path], timeout=_SECONDS)
    try:
        return ResourceStatus(output.stdout.decode(errors="replace").strip())
    except ValueError:
        raise NodeError(
            f"{node_label} cannot inspect its files", printable_tail(output.stderr)
        ) from None

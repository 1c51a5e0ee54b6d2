"""Machines that a provider creates: reached over ssh with the login key of their cluster, used when they have booted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Self

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass, field, fields, replace
from trainctl.base.units import parse_duration
from trainctl.errors import NodeUnreachable, UserInterrupt
from trainctl.plugin_api.provider import (
    ClusterSettings,
    Node,
    Transport,
    duration_schema,
    integer_schema,
    text_schema,
)
from trainctl_ssh.hosts import find_host_paths
from trainctl_ssh.keys import HOST_KEY, login_key_path, replace_host_key, run_as_root
from trainctl_ssh.provider import SshProvider
from trainctl_ssh.user_data import (
    FIRST_LOGIN,
    KEPT_MARKER,
    LOGIN_MARKER,
    NOT_WATCHED,
    WATCH_AT_BOOT,
    shutdown_command,
)

PARALLELISM = 16
_LONGEST_PAUSE_SECONDS = 4.0


def setting(value: Any, /, **schema: Any) -> Any:
    """Return a member of settings with its default and its schema."""
    return field(default=value, metadata=schema)


def text_setting(pattern: str, description: str, **more: Any) -> Any:
    """Return a text with its schema."""
    return setting(more.get("default", ""), **text_schema(pattern, description, **more))


def whole_setting(description: str, minimum: int = 1, **more: Any) -> Any:
    """Return an integer with its schema."""
    return setting(more.get("default", 0), **integer_schema(description, minimum, **more))


def duration_setting(description: str, default: str) -> Any:
    """Return a duration with its schema, in seconds."""
    return setting(parse_duration(default), **duration_schema(description, default))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Settings of one cluster by their keys in the manifest; durations in seconds."""

    nodes: int = whole_setting("Number of machines.", default=1)
    boot_timeout: float = duration_setting(
        "Time for a machine to boot; it turns itself off if it is not set up by then.", "15m"
    )
    idle_timeout: float = duration_setting(
        "Time without runs after which a machine turns itself off.", "30m"
    )

    @classmethod
    def schema(cls, required: str) -> JsonObject:
        """Return the JSON Schema of a cluster section, without the core's keys."""
        properties: dict[str, Any] = {each.name: dict(each.metadata) for each in fields(cls)}
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [required],
            "properties": properties,
        }

    @classmethod
    def read(cls, own: Mapping[str, Any], **others: Any) -> Self:
        """Return the settings that the schema accepts, with ``others``."""
        values = {each.name: own[each.name] for each in fields(cls) if each.name in own}
        for name in values:
            if name.endswith(("_timeout", "_lifetime")):
                values[name] = parse_duration(values[name])
        return cls(**{**values, **others})

    def node_facts(self, user: str, price: object) -> dict[str, Any]:
        """Return the members of a node that say what it costs, and what ends its machine."""
        return {
            "price_per_hour": price if isinstance(price, int | float) else None,
            "shutdown": shutdown_command(user),
            "boot_timeout": self.boot_timeout,
            "idle_timeout": self.idle_timeout,
        }


def planned_nodes(cluster: ClusterSettings, settings: MachineSettings, **facts: Any) -> list[Node]:
    """Return the desired nodes; equal details would mean the same machine."""
    names = [f"{cluster.name}-{number}" for number in range(settings.nodes)]
    return [Node(cluster.name, name, details={"node": name}, **facts) for name in names]


class SshMachines(SshProvider):
    """Base of providers whose machines ``ssh`` reaches. Nodes have ``lineage`` in ``details``, and what a login needs."""

    def __init__(self) -> None:
        super().__init__()
        self._paths: dict[object, dict[str, Any]] = {}

    def transport(self, node: Node) -> Transport:
        """Return a transport that offers the login key only; NodeUnreachable without its file."""
        path = login_key_path(self.name, node.cluster, node.details.get("lineage", ""))
        if not path.exists():
            raise NodeUnreachable(
                f"no login key for {node.id}",
                f"The machine was created on another computer. Copy the key from there to {path}.",
                code="ssh-permission-denied",
            )
        own = {"identity_file": str(path), "identity_only": True}
        return super().transport(replace(node, details={**node.details, **own}))

    def log_in(self, node: Node) -> Node:
        """Add the paths of a machine that has booted."""
        if not node.address:
            raise NodeUnreachable(f"{node.id} has no address yet")
        machine = (node.key, node.address, *map(node.details.get, ("instance", "port")))
        if machine not in self._paths:
            with closing(self.transport(node)) as transport:
                marks = (LOGIN_MARKER,) if node.shutdown else (LOGIN_MARKER, KEPT_MARKER)
                output = transport.run(["sh", "-c", FIRST_LOGIN, "sh", *marks], timeout=600)
                if node.shutdown and output.exit_code == NOT_WATCHED:
                    run_as_root(transport, node, WATCH_AT_BOOT, "start the idle watch at boot")
                self._paths[machine] = find_host_paths(transport, node)
        return replace(node, **self._paths[machine])

    def try_to_log_in(self, node: Node) -> Node:
        """Add the paths of a machine unless it doesn't respond."""
        with suppress(NodeUnreachable):
            return self.log_in(node)
        return node

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """NodeUnreachable if the machine doesn't exist or respond."""
        found = self.find(cluster, node.key)
        if found is None:
            raise NodeUnreachable(f"{node.id} does not exist")
        return self.log_in(found)

    def await_boot(
        self,
        cluster: ClusterSettings,
        look: Callable[[], tuple[Node, str]],
        record: Callable[[str, str], None],
    ) -> Node:
        """Return a node when its machine has an address and has booted; NodeUnreachable after its ``boot_timeout``.

        ``look`` returns the node as its provider reports it and the host key that it will have; ``record`` stores a host key.
        """
        start, pause, refusals = time.monotonic(), 1.0, 0
        while True:
            node, following = look()
            recorded = node.details.get("host_key", "")
            # After a kill, the machine may have either of the recorded keys.
            key = following if following and refusals % 2 == 0 else recorded
            try:
                located = self.log_in(_with_key(node, key))
                if not following or key != following:
                    with closing(self.transport(located)) as transport:
                        key = replace_host_key(transport, located, record)
                elif key != recorded:
                    record(HOST_KEY, key)
                return _with_key(located, key)
            except NodeUnreachable as error:
                # the machine's key may just have been replaced; that of the jump host is unknown
                refusals += error.code in ("ssh-key-changed", "ssh-unknown-key")
                if refusals > 2 or time.monotonic() > start + node.boot_timeout:
                    raise
            wait(cluster, pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _with_key(node: Node, key: str) -> Node:
    return replace(node, details={**node.details, "host_key": key})


def wait(cluster: ClusterSettings, seconds: float) -> None:
    """Sleep; UserInterrupt if the user stops the apply."""
    if cluster.cancelled.wait(seconds):
        raise UserInterrupt("stopped while waiting for a machine", "The next apply continues.")

"""Machines that a provider creates: reached over ssh with the login key of their cluster, used when they have booted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.errors import NodeUnreachable, UserInterrupt
from trainctl.plugin_api.provider import ClusterSettings, Confirm, Node, Transport
from trainctl_ssh.hosts import find_host_paths
from trainctl_ssh.keys import locate_with_own_key, login_key_path, run_as_root
from trainctl_ssh.provider import SshProvider
from trainctl_ssh.user_data import (
    FIRST_LOGIN,
    KEPT_MARKER,
    LOGIN_MARKER,
    NOT_WATCHED,
    WATCH_AT_BOOT,
)

PARALLELISM = 16
_LONGEST_PAUSE_SECONDS = 4.0


class SshMachines:
    """Base of providers whose machines ``ssh`` reaches. Nodes have ``lineage`` in ``details``, and what a login needs."""

    name: str

    def __init__(self) -> None:
        self._ssh = SshProvider()
        self._paths: dict[object, dict[str, Any]] = {}

    def set_confirm(self, confirm: Confirm) -> None:
        self._ssh.set_confirm(confirm)

    def close(self) -> None:
        self._ssh.close()

    def transport(self, node: Node) -> Transport:
        """Return a transport that offers the login key only; NodeUnreachable without its file."""
        lineage = node.details.get("lineage", "")
        path = login_key_path(os.environ, self.name, node.cluster, lineage)
        if not path.exists():
            raise NodeUnreachable(
                f"no login key for {node.id}",
                f"The machine was created on another computer. Copy the key from there to {path}.",
                code="ssh-permission-denied",
            )
        own = {"identity_file": str(path), "identity_only": True}
        return self._ssh.transport(replace(node, details={**node.details, **own}))

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

    def list_nodes(self, nodes: Iterable[Node]) -> list[Node]:
        """Return nodes by name, with the paths of those that respond."""
        return sorted(
            each(self.try_to_log_in, list(nodes), PARALLELISM), key=lambda node: node.name
        )

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
            try:
                return locate_with_own_key(node, following, self.log_in, self.transport, record)
            except NodeUnreachable as error:
                # the machine's key may just have been replaced; that of the jump host is unknown
                refusals += error.code in ("ssh-key-changed", "ssh-unknown-key")
                if refusals > 2 or time.monotonic() > start + node.boot_timeout:
                    raise
            wait(cluster, pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def wait(cluster: ClusterSettings, seconds: float) -> None:
    """Sleep; UserInterrupt if the user stops the apply."""
    if cluster.cancelled.wait(seconds):
        raise UserInterrupt("stopped while waiting for a machine", "The next apply continues.")

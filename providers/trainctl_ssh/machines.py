"""Machines that a provider creates: reached over ssh with the login key of their cluster, used when they have booted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import NodeUnreachable, UserInterrupt
from trainctl.plugin_api.provider import ClusterSettings, Node, Transport
from trainctl_ssh.hosts import find_host_paths
from trainctl_ssh.keys import login_key_path, run_as_root
from trainctl_ssh.provider import SshProvider
from trainctl_ssh.user_data import (
    FIRST_LOGIN,
    KEPT_MARKER,
    LOGIN_MARKER,
    NOT_WATCHED,
    WATCH_AT_BOOT,
)

_LONGEST_PAUSE_SECONDS = 4.0
_Machine = TypeVar("_Machine")


class SshMachines:
    """Machines of one provider, reached by ``ssh``. Their nodes have ``lineage`` in ``details``, and what a login needs."""

    def __init__(self, provider: str) -> None:
        self._provider, self.ssh = provider, SshProvider()
        self._paths: dict[str, dict[str, Any]] = {}

    def transport(self, node: Node) -> Transport:
        """Return a transport that offers the login key only; NodeUnreachable without its file."""
        lineage = node.details.get("lineage", "")
        path = login_key_path(os.environ, self._provider, node.cluster, lineage)
        if not path.exists():
            raise NodeUnreachable(
                f"no login key for {node.id}",
                f"The machine was created on another computer. Copy the key from there to {path}.",
                code="ssh-permission-denied",
            )
        own = {"identity_file": str(path), "identity_only": True}
        return self.ssh.transport(replace(node, details={**node.details, **own}))

    def locate(self, node: Node, machine: str) -> Node:
        """Add the paths of a machine that has booted; ``machine`` is an id that no other machine gets."""
        if not node.address:
            raise NodeUnreachable(f"{node.id} has no address yet")
        if machine not in self._paths:
            with closing(self.transport(node)) as transport:
                marks = (LOGIN_MARKER,) if node.shutdown else (LOGIN_MARKER, KEPT_MARKER)
                output = transport.run(["sh", "-c", FIRST_LOGIN, "sh", *marks], timeout=600)
                if node.shutdown and output.exit_code == NOT_WATCHED:
                    run_as_root(transport, node, WATCH_AT_BOOT, "start the idle watch at boot")
                self._paths[machine] = find_host_paths(transport, node)
        return replace(node, **self._paths[machine])


def wait(cluster: ClusterSettings, seconds: float) -> None:
    """Sleep; UserInterrupt if the user stops the apply."""
    if cluster.cancelled.wait(seconds):
        raise UserInterrupt("stopped while waiting for a machine", "The next apply continues.")


def await_boot(
    cluster: ClusterSettings,
    boot_timeout: float,
    look: Callable[[], _Machine],
    locate: Callable[[_Machine], Node],
) -> Node:
    """Return the located node when its machine has an address and has booted; NodeUnreachable after ``boot_timeout`` seconds.

    ``look`` returns the machine as its provider reports it, or raises; ``locate`` logs in.
    """
    end, pause, refusals = time.monotonic() + boot_timeout, 1.0, 0
    while True:
        machine = look()
        try:
            return locate(machine)
        except NodeUnreachable as error:
            # the machine's key may just have been replaced; that of the jump host is unknown
            refusals += error.code in ("ssh-key-changed", "ssh-unknown-key")
            if refusals > 2 or time.monotonic() > end:
                raise
        wait(cluster, pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

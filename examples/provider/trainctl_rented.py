"""Provider of machines that exist from ``create`` to ``delete``.

Its machines are directories below the setting ``base``, so that it runs anywhere. A real one would call the interface of
a cloud in ``list_machines``, ``create`` and ``delete``, and return a transport over ssh.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.machines import Machine
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Confirm,
    Node,
    ResourceStatus,
    SettingsProblem,
    Transport,
)
from trainctl_local import LocalTransport

PRICES = {"small": 0.4, "large": 1.6}
"""Price per hour of each machine type."""


class RentedProvider:
    """Machines of a type, one for each node."""

    name = "rented"
    capabilities = Capabilities(
        creates_machines=True, costs_money=True, replacement_settings=("base", "machine_type")
    )

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of the cluster's settings."""
        return {
            "type": "object",
            "additionalProperties": False,
            "required": ["base"],
            "properties": {
                "base": {"type": "string", "description": "Directory of the machines."},
                "nodes": {"type": "integer", "minimum": 1, "default": 1, "description": "Number of machines."},
                "idle_timeout": {"type": "number", "default": 1800, "description": "Seconds."},
                "metadata_url": {"type": "string", "description": "Service that announces interruptions."},
                "machine_type": {"enum": list(PRICES), "default": "small", "description": "Type of machine."},
            },
        }  # fmt: skip

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        """Check what the schema can't express: nothing."""
        return ()

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        """Return the desired nodes; their machines need not exist."""
        count = int(str(cluster.settings.get("nodes", 1)))
        return [_node(cluster, f"{cluster.name}-{number}") for number in range(count)]

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """Fail: nothing is known of a machine before it exists."""
        raise NodeUnreachable(f"{node.id} does not exist yet")

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Create a machine, unless one with this key exists."""
        directory = _directory(cluster, key)
        (directory / "root").mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), (directory / "machine.json").open("x") as file:
            owner = {"cluster": cluster.name, "lineage": cluster.lineage}
            json.dump({"key": key, "name": name, **owner}, file)
        return _node(cluster, name, key)

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Return the machine that a killed ``create`` may have left."""
        found = (machine.node for machine in self.list_machines(cluster))
        return next((node for node in found if node.key == key), None)

    def list_machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Return all machines that exist, of which ``trainctl nodes --orphans`` shows unused ones."""
        machines = []
        for path in Path(str(cluster.settings["base"])).absolute().glob("*/machine.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):  # being created or deleted
                found = json.loads(path.read_text())
                owner = ClusterSettings(found["cluster"], cluster.settings)
                node = _node(owner, found["name"], found["key"])
                machines.append(Machine(node, path.parent.name, found["lineage"], "running"))
        return machines

    def read(self, node: Node) -> ResourceStatus:
        """Return whether the machine exists, and whether it responds."""
        directory = Path(node.root).parent
        if not (directory / "machine.json").exists():
            return ResourceStatus.MISSING
        stopped = (directory / "stopped").exists()
        return ResourceStatus.UNREACHABLE if stopped else ResourceStatus.PRESENT

    def delete(self, node: Node) -> None:
        """Delete the machine with everything on it."""
        if Path(node.address).exists():
            subprocess.run(node.shutdown, check=True)

    def transport(self, node: Node) -> Transport:
        """Return a transport that runs programs on the machine."""
        if self.read(node) is not ResourceStatus.PRESENT:
            raise NodeUnreachable(f"{node.id} doesn't respond")
        return LocalTransport()

    def set_confirm(self, confirm: Confirm) -> None:
        """Ask no questions."""

    def close(self) -> None:
        """Hold nothing open."""


def _directory(cluster: ClusterSettings, key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(str(cluster.settings["base"]), f"{cluster.name}-{name}").absolute()


def _node(cluster: ClusterSettings, name: str, key: str = "") -> Node:
    directory = _directory(cluster, key) if key else None
    metadata = cluster.settings.get("metadata_url")
    return Node(
        cluster=cluster.name,
        name=name,
        address=str(directory or ""),
        root=str(directory / "root") if directory else "",
        data=str(directory / "data") if directory else "",
        python=sys.executable if directory else "",
        key=key,
        details={"notice": {"kind": "imds", "url": str(metadata)}} if metadata else {},
        shutdown=("sh", "-c", 'chmod -R u+w "$0"; rm -rf "$0"', str(directory)),
        stop=("touch", f"{directory}/stopped"),
        idle_timeout=float(str(cluster.settings.get("idle_timeout", 1800))),
        price_per_hour=PRICES[str(cluster.settings.get("machine_type", "small"))],
    )

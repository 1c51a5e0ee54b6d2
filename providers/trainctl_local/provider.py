"""Provider and transport of nodes on this machine; see DESIGN.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainctl.base.json import JsonObject
from trainctl.errors import NodeError
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    CommandOutput,
    Confirm,
    InteractiveTransport,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
    Transport,
    integer_schema,
)
from trainctl.remote.processes import ProgramRunner, ProgramStreams

_MAX_NODES = 64  # each is looked for in the file system


class LocalProvider:
    """Nodes in directories below the cache home."""

    name = "local"
    capabilities = Capabilities(shares_disk_with_client=True)

    def set_confirm(self, confirm: Confirm) -> None:
        """There are no prompts."""

    def close(self) -> None:
        """There is nothing to close."""

    def schema(self) -> JsonObject:
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "nodes": integer_schema(
                    "Number of nodes, which are directories of this machine.",
                    maximum=_MAX_NODES,
                    default=1,
                ),
                "gpus": integer_schema("Number of GPUs per node.", minimum=0, default=0),
            },
        }

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return ()

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        count = _integer(cluster, "nodes", 1)
        return [_node(cluster, f"{cluster.name}-{number}", "") for number in range(count)]

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """All paths are known."""
        return node

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Keys share a directory; each has its own marker in it."""
        from trainctl.remote.node_markers import create_marker

        node = _node(cluster, name, key)
        text = {"key": key, "cluster": cluster.name, "name": name}
        try:
            response = create_marker({**_request(node), "text": text})
        except OSError as error:
            raise NodeError(
                f"cannot create node {node.id}: {error.strerror}: {error.filename}",
                "Make the directory writable, or set XDG_CACHE_HOME to another directory.",
            ) from error
        if not response["made"]:
            raise NodeError(
                f"node {node.id} is deleted by another process as soon as it is created"
            )
        return node

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        names = (f"{cluster.name}-{number}" for number in range(_MAX_NODES))
        found = (name for name in names if _marker(_root(name), key).exists())
        return next((_node(cluster, name, key) for name in found), None)

    def read(self, node: Node) -> ResourceStatus:
        try:
            _marker(Path(node.root), node.key).stat()
        except FileNotFoundError:
            return ResourceStatus.MISSING
        except OSError:
            return ResourceStatus.FORBIDDEN
        return ResourceStatus.PRESENT

    def delete(self, node: Node) -> None:
        """The last key removes the directory, if no other lineage uses it."""
        from trainctl.remote.node_markers import remove_marker

        try:
            remove_marker(_request(node))
        except OSError as error:
            raise NodeError(
                f"cannot remove node {node.id}: {error.strerror}: {error.filename}"
            ) from error

    def transport(self, node: Node) -> Transport:
        return LocalTransport()


def _node(cluster: ClusterSettings, name: str, key: str) -> Node:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "trainctl"
    return Node(
        cluster.name,
        name,
        "local",
        str(_root(name)),
        data=str(data),
        python=sys.executable,
        key=key,
        gpus=_integer(cluster, "gpus", 0),
    )


def _root(name: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trainctl" / "nodes" / name


def _marker(root: Path, key: str) -> Path:
    from trainctl.remote.node_markers import marker_name

    return root / "made" / marker_name(key)


def _request(node: Node) -> dict[str, str]:
    from trainctl.remote.node_markers import marker_name

    return {"root": node.root, "data": node.data, "marker": marker_name(node.key)}


def _integer(cluster: ClusterSettings, name: str, default: int) -> int:
    value = cluster.settings.get(name, default)
    return value if isinstance(value, int) else default


class LocalTransport:
    """Runs programs in own process groups, to kill them with their children."""

    def __init__(self) -> None:
        self._programs = ProgramRunner()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        stdout, stderr = bytearray(), bytearray()
        streams = ProgramStreams(on_stdout or stdout.extend, stderr.extend, stdin, timeout=timeout)
        code = self._programs.run(argv, streams)
        return CommandOutput(code, bytes(stdout), bytes(stderr))

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        """Node and client share the loopback interface."""
        yield port

    def terminal_command(self, argv: Sequence[str], *, tty: bool) -> Sequence[str]:
        return argv

    @property
    def ssh_options(self) -> Mapping[str, str]:
        return {}

    @contextmanager
    def forward(self, local_port: int, port: int) -> Iterator[Callable[[], bool]]:
        """Node and client share the loopback interface."""
        if local_port != port:
            raise NodeError(
                f"the node is this machine: port {port} can't be another", f"Use {port}."
            )
        yield lambda: True

    def close(self) -> None:
        """Kill programs that are still running."""
        self._programs.close()


_: tuple[type[Provider], type[InteractiveTransport]] = (LocalProvider, LocalTransport)

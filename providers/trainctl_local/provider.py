"""Provider and transport of nodes on this machine; see DESIGN.md."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
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
)
from trainctl.remote.processes import ProgramRunner, ProgramStreams

_MAX_NODES = 64
_PROVENANCE_FILE = "made"
_ATTEMPTS = 5


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
                "nodes": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": _MAX_NODES,
                    "default": 1,
                    "description": "Number of nodes, which are directories of this machine.",
                },
                "gpus": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Number of GPUs per node.",
                },
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
        node = _node(cluster, name, key)
        marker = _marker(Path(node.root), key)
        text = json.dumps({"key": key, "cluster": cluster.name, "name": name}) + "\n"
        try:
            for _ in range(_ATTEMPTS):
                marker.parent.mkdir(0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    marker.write_text(text, encoding="utf-8")
                if marker.exists():
                    return node
        except OSError as error:
            raise NodeError(
                f"cannot create node {node.id}: {error.strerror}: {error.filename}",
                "Make the directory writable, or set XDG_CACHE_HOME to another directory.",
            ) from error
        raise NodeError(f"node {node.id} is deleted by another process as soon as it is created")

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        for name in _existing_nodes(cluster):
            if _marker(_root(name), key).exists():
                return _node(cluster, name, key)
        return None

    def list(self, cluster: ClusterSettings) -> Sequence[Node]:
        return [_node(cluster, name, "") for name in _existing_nodes(cluster)]

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
        root = Path(node.root)
        for remains in root.parent.glob(f".{root.name}.*.*"):  # of a process that died
            pid = remains.name.removeprefix(f".{root.name}.").partition(".")[0]
            if pid.isdigit() and not Path("/proc", pid).exists():
                _remove(remains)
        with contextlib.suppress(FileNotFoundError):
            _marker(root, node.key).unlink()
        if not root.exists() or _in_use(root):
            return
        pending_removal = root.with_name(f".{root.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            root.rename(pending_removal)
        except FileNotFoundError:
            return
        if (
            _in_use(pending_removal) and not root.exists()
        ):  # a run was created between the check and the rename
            pending_removal.rename(root)
            return
        _remove(pending_removal)

    def transport(self, node: Node) -> Transport:
        return LocalTransport()


def _node(cluster: ClusterSettings, name: str, key: str) -> Node:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "trainctl"
    return Node(
        cluster=cluster.name,
        name=name,
        address="local",
        root=str(_root(name)),
        data=str(data),
        python=sys.executable,
        key=key,
        gpus=_integer(cluster, "gpus", 0),
    )


def _root(name: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trainctl" / "nodes" / name


def _marker(root: Path, key: str) -> Path:
    return root / _PROVENANCE_FILE / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _existing_nodes(cluster: ClusterSettings) -> Iterator[str]:
    for number in range(_MAX_NODES):
        name = f"{cluster.name}-{number}"
        if _root(name).is_dir():
            yield name


def _integer(cluster: ClusterSettings, name: str, default: int) -> int:
    value = cluster.settings.get(name, default)
    return value if isinstance(value, int) else default


def _in_use(root: Path) -> bool:
    """Return whether another key, a lineage's reference or a run is in the directory.

    Tombstones of runs that never started don't count: the program that could start them is removed, too.
    """
    patterns = (
        (root / _PROVENANCE_FILE, "[!.]*"),
        (root / "cache" / "references", "[!.]*"),
        (root / "runs", "[!.]*/spec.json"),
    )
    return any(
        True
        for directory, pattern in patterns
        if directory.is_dir()
        for _ in directory.glob(pattern)
    )


def _remove(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(root)


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

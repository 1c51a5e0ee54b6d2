"""Provider of nodes on existing hosts; see DESIGN.md."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from importlib.resources import files
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Confirm,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
    Transport,
    never_confirm,
)
from trainctl.remote.node_markers import marker_name
from trainctl.remote.responses import printable_tail
from trainctl_ssh.connection import SshConnection, SshHost
from trainctl_ssh.hosts import (
    SshLogin,
    cluster_hosts,
    find_host_paths,
    find_presence,
    find_problems,
    node_login,
    schema,
)
from trainctl_ssh.openssh_connection import OpenSshConnection

_PARALLELISM = 16  # each is an ssh process on this machine
_SECONDS = 120.0


class SshProvider:
    """Nodes on existing hosts; a marker file below the root of each records its users."""

    name = "ssh"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompt_lock = threading.Lock()
        self._hosts: dict[SshLogin, SshHost] = {}
        self._prompt: Confirm = never_confirm

    def set_confirm(self, confirm: Confirm) -> None:
        self._prompt = confirm

    def close(self) -> None:
        with self._lock:
            hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            host.close()

    def schema(self) -> JsonObject:
        return schema()

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return tuple(find_problems(cluster))

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        return [node for node, _ in cluster_hosts(cluster)]

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        planned, directory = next(
            host for host in cluster_hosts(cluster) if host[0].name == node.name
        )
        with closing(self.transport(node)) as transport:
            paths = find_host_paths(transport, planned, directory)
        return replace(planned, key=node.key, **paths)

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Keys share a host; each has its own marker."""
        planned = next(node for node in self.plan(cluster) if node.name == name)
        node = replace(self.locate(cluster, planned), key=key)
        text = {"key": key, "cluster": node.cluster, "name": node.name}
        if not self._do(node, "make", text=text)["made"]:
            raise NodeError(f"node {node.id} is deleted by another process as it is created")
        return node

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """NodeUnreachable if it was not found and a host was unreachable."""
        errors: list[NodeUnreachable] = []

        def inspect(planned: Node) -> Node | None:
            try:
                node = replace(self.locate(cluster, planned), key=key)
                return node if self._presence(node) is ResourceStatus.PRESENT else None
            except NodeUnreachable as error:
                errors.append(error)
                return None

        nodes = [node for node in each(inspect, self.plan(cluster), _PARALLELISM) if node]
        if not nodes and errors:
            raise errors[0]
        return nodes[0] if nodes else None

    def read(self, node: Node) -> ResourceStatus:
        try:
            return self._presence(node)
        except NodeError as error:
            if isinstance(error, NodeUnreachable) and error.code != "ssh-permission-denied":
                return ResourceStatus.UNREACHABLE
            return ResourceStatus.FORBIDDEN

    def delete(self, node: Node) -> None:
        """The last key removes the root, if no other lineage uses it."""
        self._do(node, "remove")

    def transport(self, node: Node) -> Transport:
        login = node_login(node)
        with self._lock:
            if login not in self._hosts:
                program: type[SshConnection] = OpenSshConnection
                if not shutil.which("ssh", path=os.environ.get("PATH")):
                    try:  # a tenth of a second, and rarely wanted
                        from trainctl_ssh.paramiko_connection import ParamikoConnection
                    except ImportError:
                        raise NodeUnreachable(
                            "ssh not found",
                            "Install the OpenSSH client, or paramiko: pip install 'trainctl[ssh]'.",
                            code="ssh-client-missing",
                        ) from None
                    program = ParamikoConnection
                self._hosts[login] = SshHost(program, login, node.id, self._confirm)
            return self._hosts[login].transport()

    def _confirm(self, question: str) -> bool:
        """Prompt one question at a time."""
        with self._prompt_lock:
            return self._prompt(question)

    def _presence(self, node: Node) -> ResourceStatus:
        marker = f"{node.root}/made/{marker_name(node.key)}"
        with closing(self.transport(node)) as transport:
            return find_presence(transport, marker, node.id)

    def _do(self, node: Node, method: str, **members: Any) -> dict[str, Any]:
        request = {"root": node.root, "data": node.data, "marker": marker_name(node.key), **members}
        program = (files("trainctl.remote") / "node_markers.py").read_text(encoding="utf-8")
        argv = [node.python, "-I", "-c", program, method, json.dumps(request)]
        with closing(self.transport(node)) as transport:
            output = transport.run(argv, timeout=_SECONDS)
        try:
            response: dict[str, Any] = json.loads(output.stdout)
        except ValueError:
            raise NodeError(
                f"{node.id}: {node.python} no longer runs", printable_tail(output.stderr)
            ) from None
        if "error" in response:
            raise NodeError(
                f"cannot access {response['path']} on {node.id}: {response['error']}",
                "Make it writable, or set dir of the host to another directory.",
            )
        return response


_: type[Provider] = SshProvider

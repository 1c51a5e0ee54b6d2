"""Nodes of this machine that need the same weights, each with its server, and a mirror that counts."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.node_program.nodes import MirrorFixture, NodeHarness, sent_as
from tests.support.servers.blob_server import mirror_location, serve_mirror
from trainctl.base.network.object_server import ObjectServer
from trainctl.resources.mirror_access import Certificate, new_certificate

TOKEN = "a-token-of-peers-in-tests"
_HEARTBEAT_SECONDS = 10.0
"""A server ends when its caller is silent for a minute."""
_ANSWER_SECONDS = 180.0


class PeerServerProcess:
    """One node's ``serve``, kept running by heartbeats."""

    token = TOKEN

    def __init__(
        self, node: NodeHarness, name: str, listings: Sequence[Any], listen: str = "127.0.0.1"
    ) -> None:
        self.process = node.begin("serve")
        request = {"root": str(node.root), "token": TOKEN, "listings": listings}
        certificate: Certificate | None = None
        event = self._send({**request, "listen": listen})
        if "request" in event:
            certificate = new_certificate()
            event = self._send({"response": event["request"], **asdict(certificate)})
        address = {key: event[key] for key in ("urls", "loopback", "holds")}
        self.peer: dict[str, Any] = {"node": name, "token": TOKEN, **address}
        """What other nodes learn about it."""
        if certificate is not None:
            self.peer["fingerprint"] = certificate.fingerprint
        self.port = urlsplit(event["urls"][0]).port or 0
        self._over = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)
        self._heartbeat.start()

    def _send(self, line: dict[str, Any]) -> dict[str, Any]:
        """Send a line; return the next event."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(sent_as(line))
        self.process.stdin.flush()
        event: dict[str, Any] = json.loads(self.process.stdout.readline())["event"]
        return event

    def _beat(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it was ended, or killed
            while not self._over.wait(_HEARTBEAT_SECONDS):
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()

    def end(self) -> int:
        """End it; return how many bytes it has sent."""
        self._over.set()
        self._heartbeat.join()
        return int(result_of(self.process)["sent"])


class PeerGroup:
    """Nodes that share a mirror behind a server."""

    def __init__(self, base: Path, count: int) -> None:
        self.nodes: list[NodeHarness] = []
        for number in range(count):
            directory = base / f"node-{number}"
            directory.mkdir(parents=True)
            self.nodes.append(NodeHarness(directory))
        self.mirror: MirrorFixture = self.nodes[0].mirror
        for node in self.nodes:
            node.mirror = self.mirror

    @contextmanager
    def serving(self) -> Iterator[list[PeerServerProcess]]:
        listings = [json.loads(self.mirror.listing.to_bytes())]
        with ExitStack() as stack:
            servers = []
            for number, node in enumerate(self.nodes):
                servers.append(PeerServerProcess(node, f"lab/lab-{number}", listings))
                stack.callback(kill, servers[-1].process)
            yield servers

    def begin(
        self, number: int, peers: Sequence[dict[str, Any]], server: ObjectServer, **changes: Any
    ) -> subprocess.Popen[bytes]:
        """Start one node's delivery."""
        mine = {
            "mirror": mirror_location(server),
            "peers": list(peers),
            "node": f"lab/lab-{number}",
        }
        return self.nodes[number].popen(
            "deliver", self.nodes[number].delivery(**{**mine, **changes})
        )

    def deliver(
        self, certificate: Certificate | None = None, **changes: Any
    ) -> tuple[list[dict[str, Any]], int]:
        """Deliver to all at once; their results, and how many bytes the mirror sent."""
        with serve_mirror(self.mirror, certificate) as server, self.serving() as servers:
            mirror = mirror_location(server, certificate)
            peers = [item.peer for item in servers]
            processes = [
                self.begin(number, peers, server, mirror=mirror, **changes)
                for number in range(len(self.nodes))
            ]
            return [result_of(process) for process in processes], server.sent

    def assert_delivered(self, *numbers: int) -> None:
        """Check that these nodes, or all, have every byte, and nothing unfinished."""
        for node in [self.nodes[number] for number in numbers] or self.nodes:
            for path, data in self.mirror.files.items():
                assert (node.tree / path).read_bytes() == data, (node.base, path)
            assert list((node.root / "cache" / "partial").iterdir()) == []


def await_movement(process: subprocess.Popen[bytes]) -> None:
    """Wait until a delivery receives bytes: its first event is about what was there before."""
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()


def response_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a method that was started; return its last line."""
    try:
        out, err = process.communicate(timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert out, err
    response: dict[str, Any] = json.loads(out.splitlines()[-1])
    return response


def result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a method that was started; return its result."""
    response = response_of(process)
    assert process.returncode == 0, response
    result: dict[str, Any] = response["result"]
    return result


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate(timeout=_ANSWER_SECONDS)

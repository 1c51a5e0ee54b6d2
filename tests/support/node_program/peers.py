"""Several nodes of this machine that need the same weights at once, each with its server, and a mirror that counts."""

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
from trainctl.resources.mirror.node_server import Certificate, new_certificate

TOKEN = "a-token-of-peers-in-tests"


_BEAT_SECONDS = 10.0
"""A server ends when its caller is silent for a minute."""


class PeerServerProcess:
    """One node's ``serve``, held open by a caller that says now and then that it is there."""

    def __init__(
        self, node: NodeHarness, name: str, listings: Sequence[Any], listen: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self.process = node.begin("serve")
        request = {"root": str(node.root), "token": TOKEN, "listings": listings}
        self._certificate: Certificate | None = None
        self.told = self._said({**request, "listen": listen})
        if "request" in self.told:
            self._certificate = new_certificate()
            self.told = self._said({"response": self.told["request"], **asdict(self._certificate)})
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    token = TOKEN

    def _said(self, line: dict[str, Any]) -> dict[str, Any]:
        """Tell it something; its next event."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(sent_as(line))
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())["event"]
        return found

    def _beat(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it was ended, or killed
            while not self._over.wait(_BEAT_SECONDS):
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()

    @property
    def port(self) -> int:
        """Where it listens."""
        return urlsplit(self.told["urls"][0]).port or 0

    @property
    def peer(self) -> dict[str, Any]:
        """How others are told of it."""
        told = {name: self.told[name] for name in ("urls", "loopback", "holds")}
        peer = {"node": self.name, "token": TOKEN, **told}
        if self._certificate is None:
            return peer
        return {**peer, "fingerprint": self._certificate.fingerprint}

    def end(self) -> int:
        """Let go of it; the bytes that it has sent."""
        self._over.set()
        self._beating.join()
        out, _ = self.process.communicate()
        return int(json.loads(out.splitlines()[-1])["result"]["sent"])


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
        """Every node's server."""
        document = json.loads(self.mirror.listing.to_bytes())
        with ExitStack() as stack:
            found = []
            for number, node in enumerate(self.nodes):
                one = PeerServerProcess(node, f"lab/lab-{number}", [document])
                stack.callback(_kill, one.process)
                found.append(one)
            yield found

    def begin(
        self, number: int, peers: Sequence[dict[str, Any]], server: ObjectServer, **changes: Any
    ) -> subprocess.Popen[bytes]:
        """Start one node's delivery."""
        mine = {
            "mirror": mirror_location(server),
            "peers": list(peers),
            "node": f"lab/lab-{number}",
        }
        request = self.nodes[number].delivery(**{**mine, **changes})
        return self.nodes[number].popen("deliver", request)

    def deliver(self, **changes: Any) -> tuple[list[dict[str, Any]], int]:
        """Deliver to all at once; their results, and the bytes that the mirror sent."""
        with serve_mirror(self.mirror) as server, self.serving() as servings:
            peers = [one.peer for one in servings]
            processes = [
                self.begin(number, peers, server, **changes) for number in range(len(self.nodes))
            ]
            return [result_of(process) for process in processes], server.sent


def await_movement(process: subprocess.Popen[bytes]) -> None:
    """Until something moves: the first event of a delivery tells what is here before that."""
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()


def result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a delivery that was started answers."""
    out, err = process.communicate()
    assert process.returncode == 0, (out[-2000:], err)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])["result"]
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()

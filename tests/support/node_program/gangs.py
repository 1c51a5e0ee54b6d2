"""A gang on nodes of this machine, started as an operator starts one: rank 0 first, then the others with where it listens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base.system.processes import find_by_environment

QUICK = {
    "addresses": ["127.0.0.1"],
    "disconnect_timeout": 2,
    "silence_timeout": 20,
}
"""Who is gone is told sooner than in earnest."""


@contextmanager
def nodes(base: Path, count: int) -> Iterator[list[NodeHarness]]:
    """So many nodes below a directory, whatever runs there ended afterwards."""
    nodes = []
    for number in range(count):
        (base / str(number)).mkdir(parents=True)
        nodes.append(NodeHarness(base / str(number)))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


class GangHarness:
    """One run on several nodes."""

    def __init__(self, on: Sequence[NodeHarness], *commands: str, **changes: Any) -> None:
        """``changes`` are those of the specification; ``files`` its code."""
        self.nodes = list(on)
        self.key = str(changes.get("key", "run-1"))
        files = changes.pop("files", {"nothing.txt": ""})
        code = f"sha256:{self.key}"
        size = len(self.nodes)
        ends = {"gang_end": "all", "gang_end_grace": 0}
        shared = {"code": code, "group_size": size, "gang": QUICK, **ends, **changes}
        self.specs = []
        for rank, node in enumerate(self.nodes):
            place = {"NODE_RANK": rank, "GROUP_SIZE": size, "LEADER_ADDR": "127.0.0.1"}
            environment = {f"BT_{name}": str(value) for name, value in place.items()}
            own = {"rank": rank, "environment": environment}
            self.specs.append(node.spec(*commands, **{**shared, **own}))
        for node in self.nodes:
            node.upload_code(files, code)

    def request(self, rank: int, rendezvous: Any = None) -> dict[str, Any]:
        return {**self.nodes[rank].start_request(self.specs[rank]), "rendezvous": rendezvous}

    def start(self, ranks: Sequence[int] | None = None) -> None:
        """Start these ranks, all by default, rank 0 first."""
        wanted = range(len(self.nodes)) if ranks is None else ranks
        rendezvous = self.nodes[0].call("start", self.request(0))["rendezvous"]

        def start(rank: int) -> None:
            self.nodes[rank].call("start", self.request(rank, rendezvous))

        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(start, [rank for rank in wanted if rank]))

    def ended(self, seconds: float = 60) -> list[dict[str, Any]]:
        """Every rank's status once all have ended."""
        return [node.ended(self.key, seconds) for node in self.nodes]

    def printed(self, text: str, seconds: float = 60) -> None:
        """Wait until every rank has written so."""
        ranks = range(len(self.nodes))
        wait_for(lambda: all(text in self.log(rank) for rank in ranks), seconds)

    def log(self, rank: int) -> str:
        return self.nodes[rank].log(self.key, rank)

    def kill_supervisor(self, rank: int) -> None:
        os.kill(self.nodes[rank].status(self.key)["pid"], signal.SIGKILL)

    def processes(self) -> list[int]:
        """What is left of the job on any node."""
        places = [node.directory(self.key) for node in self.nodes]
        marks = [f"TRAINCTL_RUN_DIRECTORY={place}".encode() for place in places]
        return [pid for mark in marks for pid in find_by_environment(mark)]

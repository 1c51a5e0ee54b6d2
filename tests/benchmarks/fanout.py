"""What it takes to have weights on nodes, beside what it has to take.

One node, over loopback: large files beside a minimal loop that receives, hashes and writes the same (limit: 0.85 of its
speed) and beside scp where there is one (2 times its speed); small files (5000 a second).

N nodes that send at a limited rate, as network namespaces (needs root, ip and tc): the time beside the lower bound
max(F/u, N*F/(u + N*u)) (limits: 1.25 times for 4 nodes, 1.3 for 8), how many copies the mirror sends (1.05), and
beside everyone fetching for himself.

Run: ``python -m tests.benchmarks.fanout``; exits 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import loopback
from tests.support.netns import Host, missing, switched
from tests.support.nodes import TestNode
from tests.support.peers import TOKEN, Serving, result_of

MIB = 2**20
LIMITS = {4: 1.25, 8: 1.3}
MOST_COPIES = 1.05


def main() -> int:
    """Measure and judge."""
    options = _options()
    kept = loopback.measure(options.memory, options.loopback_mib * MIB, options.small)
    if missing():
        print(f"fan-out: not measured, it needs {missing()}; limit {LIMITS}")
        return 0 if kept else 1
    for count in options.nodes:
        mbit = options.mbit or {4: 400}.get(count, 200)
        size = (options.mib or {4: 512}.get(count, 768)) * MIB
        kept &= _fan_out(options.memory, count, mbit, size)
    return 0 if kept else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--mib", type=int, help="of the weights that N nodes get")
    parser.add_argument("--mbit", type=int, help="that each node sends a second")
    parser.add_argument("--loopback-mib", type=int, default=1024)
    parser.add_argument("--small", type=int, default=5000, help="small files")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    return parser.parse_args()


def _fan_out(memory: Path, count: int, mbit: int, size: int) -> bool:
    rate = mbit * 1e6 / 8
    ours, copies = _deliver(memory, count, mbit, size, together=True)
    alone, _ = _deliver(memory, count, mbit, size // 4, together=False)
    bound = max(size / rate, count * size / (rate + count * rate))
    ratio, limit = ours / bound, LIMITS.get(count, 1.3)
    print(
        f"{count} nodes, {size / MIB:.0f} MiB, {mbit} Mbit/s each: {ours:.1f} s, ratio to the lower bound {ratio:.2f} "
        f"(limit {limit}); the mirror sent {copies:.3f} copies (limit {MOST_COPIES}); "
        f"everyone for himself {alone * 4 / bound:.2f} (a quarter of it was measured); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return ratio <= limit and copies <= MOST_COPIES


def _deliver(
    memory: Path, count: int, mbit: int, size: int, *, together: bool
) -> tuple[float, float]:
    """Seconds until all have everything, and how many copies the mirror sent."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        hosts = stack.enter_context(switched(count + 1, mbit))
        nodes = _nodes(base, hosts[1:])
        mirror = nodes[0].mirror
        for shard in range(2):
            mirror.add(f"model-{shard}.bin", os.urandom(size // 2))
        document = json.loads(mirror.listing.to_bytes())
        mirror.files.clear()
        server, port = stack.enter_context(_mirror(hosts[0], mirror.path))
        more = stack.enter_context(_peers(nodes, hosts[1:], document)) if together else {}
        url = f"http://{hosts[0].address}:{port}"
        request = {
            "lineage": "lineage-1", "owner": "", "lease": "run-1", "listing": document,
            "origin": {"type": "http", "url": url, "token": TOKEN}, **more,
        }  # fmt: skip
        began = time.monotonic()
        work = [
            node.popen("deliver", {**request, "node": f"node-{number}"})
            for number, node in enumerate(nodes)
        ]
        for process in work:
            result_of(process)
        seconds = time.monotonic() - began
        sent = int(server.communicate()[0])
        for node in nodes:
            shutil.rmtree(node.root, ignore_errors=True)
        return seconds, sent / size


def _nodes(base: Path, hosts: Sequence[Host]) -> list[TestNode]:
    nodes = []
    for number, host in enumerate(hosts):
        directory = base / f"node-{number}"
        directory.mkdir()
        nodes.append(TestNode(directory, sys.executable, prefix=host.prefix))
        nodes[-1].mirror = nodes[0].mirror
    return nodes


@contextmanager
def _mirror(host: Host, directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The mirror's server on a host."""
    module = [sys.executable, "-m", "tests.support.serve_mirror"]
    with subprocess.Popen(
        [*host.prefix, *module, str(directory), host.address, TOKEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


@contextmanager
def _peers(
    nodes: Sequence[TestNode], hosts: Sequence[Host], document: Any
) -> Iterator[dict[str, Any]]:
    """Every node's server, and what all requests say of them."""
    servings = [
        Serving(node, f"node-{number}", [document], host.address)
        for number, (node, host) in enumerate(zip(nodes, hosts, strict=True))
    ]
    try:
        yield {"peers": [one.peer for one in servings]}
    finally:
        for one in servings:
            one.end()


if __name__ == "__main__":
    sys.exit(main())

"""What TLS costs: one node gets the same from another, at an address that is private and at one that isn't.

Both are on this machine, everything is in memory, and the sides take turns; medians of the deliveries' own seconds are compared. The limit
is that TLS keeps half of the speed: encrypting and decrypting, with no help of the kernel, take their part of the same processors.

Run: ``python -m tests.benchmarks.tls`` (as root, for a network of its own); exits 1 if the limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.node_program.nodes import NodeHarness
from tests.support.node_program.peers import PeerServerProcess
from tests.support.servers.blob_server import mirror_location, serve_mirror

LIMIT = 0.5
_ADDRESSES = {"plain": "10.0.113.1", "tls": "203.0.113.1"}


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024, help="of the large file")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.apart:
        return _apart()
    for words in (
        "link set lo up",
        *(f"addr add {item}/32 dev lo" for item in _ADDRESSES.values()),
    ):
        subprocess.run(["ip", *words.split()], check=True)
    with tempfile.TemporaryDirectory(dir=options.memory) as folder:
        return _measure(Path(folder), options.mib * 2**20, options.rounds)


def _apart() -> int:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        print(f"peers over TLS: not measured, it needs root, unshare and ip; limit {LIMIT}")
        return 0
    module = [sys.executable, "-m", "tests.benchmarks.tls", "--apart", *sys.argv[1:]]
    return subprocess.run(["unshare", "--net", *module], check=False).returncode


def _measure(base: Path, size: int, rounds: int) -> int:
    nodes = []
    for name in ("giver", "taker"):
        (base / name).mkdir()
        nodes.append(NodeHarness(base / name, sys.executable))
    giver, taker = nodes
    giver.mirror.add("model.bin", os.urandom(size))
    taker.mirror = giver.mirror
    giver.deliver()
    document = json.loads(giver.mirror.listing.to_bytes())
    taken: dict[str, list[float]] = {side: [] for side in _ADDRESSES}
    with serve_mirror(giver.mirror) as server:
        for _ in range(rounds):
            for side, address in _ADDRESSES.items():
                serving = PeerServerProcess(giver, "giver", [document], address)
                peers = [{"node": "taker", "holds": {}}, serving.peer]
                where = {"mirror": mirror_location(server), "peers": peers, "node": "taker"}
                result = taker.deliver(**where)
                assert result["bytes_peers"] == size
                taken[side].append(result["seconds"])
                serving.end()
                shutil.rmtree(taker.root)
    plain, tls = (statistics.median(taken[side]) for side in ("plain", "tls"))
    print(
        f"peers over TLS, one node from another, {size / 2**20:.0f} MiB in memory: {size / tls / 1e6:.0f} MB/s, ratio to plain HTTP "
        f"({size / plain / 1e6:.0f} MB/s) {plain / tls:.2f} (limit {LIMIT}); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return 0 if plain / tls >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

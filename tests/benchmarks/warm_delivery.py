"""How long a warm delivery takes: a sealed tree is asked for again, and mounted for a job. Limit: 50 ms, whatever its size.

Run: ``python -m tests.benchmarks.warm_delivery``; exits 1 if the limit is not kept. Needs a kernel that allows private mounts.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.node_program.nodes import received_as
from trainctl.base.filesystem.files import make_directory, remove_tree
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.protocol.weights import DeliverResponse
from trainctl.node.cache.delivery import deliver
from trainctl.node.runs.mount import Mount, enter_namespace

LIMIT_SECONDS = 0.050
REPEATS = 7


def main() -> int:
    """Measure a small and a large tree."""
    kept = True
    for count in (10, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            request = _request(base, count)
            tree = _deliver(request)["tree"]
            asked = [_seconds(request) for _ in range(REPEATS)]
            mounted = [_mount_seconds(base / f"view-{n}", tree) for n in range(REPEATS)]
            remove_tree(base / "node")
        median = statistics.median(mounted)
        kept = kept and median < LIMIT_SECONDS
        print(
            f"{count:6} files: tree to mount {median * 1000:6.1f} ms (limit {LIMIT_SECONDS * 1000:.0f} ms); "
            f"asking for the delivery again {statistics.median(asked) * 1000:6.1f} ms"
        )
    return 0 if kept else 1


def _request(base: Path, count: int) -> dict[str, Any]:
    files = []
    for number in range(count):
        data = str(number).encode()
        digest = hashlib.sha256(data).hexdigest()
        blob = base / "mirror" / "blobs" / "sha256" / digest[:2] / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        files.append(ListedFile(f"{number % 100}/{number}", len(data), digest))
    return {
        "root": str(base / "node"),
        "lineage": "benchmark",
        "lease": "run",
        "listing": json.loads(Listing(tuple(files)).to_bytes()),
        "mirror": {"path": str(base / "mirror")},
    }


def _mount_seconds(view: Path, tree: str) -> float:
    """From a process that has nothing to one that reads the tree at its mount, by the process's own clock."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            begun = time.monotonic()
            enter_namespace([Mount("/app/models/benchmark", tree)], make_directory(view), None)
            list(Path("/app/models/benchmark").iterdir())
            os.write(writer, repr(time.monotonic() - begun).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return float(text)


def _seconds(request: Any) -> float:
    """Of the node's part: what reaches it is made before."""
    received = received_as(request)
    begun = time.monotonic()
    deliver(received[0], _ignore, received[1])
    return time.monotonic() - begun


def _deliver(request: Any) -> DeliverResponse:
    asked, following = received_as(request)
    return deliver(asked, _ignore, following)


def _ignore(event: Mapping[str, Any]) -> None:
    """Nobody listens."""


if __name__ == "__main__":
    sys.exit(main())

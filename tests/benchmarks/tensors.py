"""Compare the tensors of two revisions of 1,000 shards, announced as 100 GB, of which each has changed.

``python -m tests.benchmarks.tensors [SHARDS]`` prints seconds, requests, and the share of bytes. The Hub is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from tests.support.servers.hub import serve
from tests.support.servers.shards import publish_shards
from trainctl.model.address import Address
from trainctl.model.contents import ContentDiff
from trainctl.model.specs.resource import WeightsSpec
from trainctl.weights.contents import compare_revisions

REPO = "owner/name"
SIZE = 100 * 10**6


def _serve(shards: int) -> None:
    with serve() as hub:
        commits = [publish_shards(hub, REPO, shards, SIZE, kind) for kind in ("BF16", "F16")]
        print(json.dumps([hub.url, *commits]), flush=True)
        sys.stdin.readline()
        print(json.dumps([len(hub.seen), hub.sent_bytes]), flush=True)


def main(shards: int) -> None:
    """Measure three times, the first with cold imports."""
    command = [sys.executable, "-m", "tests.benchmarks.tensors", str(shards), "serve"]
    for _ in range(3):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout
            url, before, after = json.loads(server.stdout.readline())
            os.environ["HF_ENDPOINT"] = url
            spec = WeightsSpec.from_attributes({"source": f"hf://{REPO}"})
            start = time.monotonic()
            diff = ContentDiff(Address.parse("weights.w"), "weights", before, after)
            diff = compare_revisions(diff, (spec, spec), None)
            seconds = time.monotonic() - start
            requests, sent = json.loads(server.communicate("\n")[0])
        share = 100 * sent / (shards * SIZE)
        print(
            f"{seconds:.2f} s, {requests} requests, {sent:,} bytes of range requests ({share:.3f} %)"
        )
        print(f"  {diff.groups[-1].title}: {dict(diff.groups[-1].counts)} {diff.notes}")


if __name__ == "__main__":
    shards = int(sys.argv[1]) if sys.argv[1:] else 1000
    _serve(shards) if sys.argv[2:] else main(shards)

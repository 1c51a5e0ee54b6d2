"""Sources on servers that take 20 ms for an answer: a bucket's list, and plans of sources that are locked and mirrored.

    python -m tests.benchmarks.far_sources [--sources 1000] [--empty 2000] [--rounds 5] [--before DIR/bin/trainctl]

The servers are ``quick_bucket`` and ``quick_hub`` in this process. The list stands beside the same requests without a signature, read
and thrown away. A plan is a process of its own; half of the sources are prefixes of a bucket, half are repositories of a Hub. Another
build, if named, plans the same in turn, for which there is no limit. Exits 1 where a limit isn't kept.

| figure | limit |
|---|---|
| resolving a prefix of 2,000 empty objects by the time of its plain list requests | at most 2 |
| requests a source of a plan | at most 1 |
| a plan, and one with ``--offline``, of 1,000 sources | at most 3 s |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.benchmarks.quick_bucket import QuickBucket, serve
from tests.benchmarks.quick_hub import MadeUp, QuickHub, quick_hub
from tests.benchmarks.terraform import measured
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource

SECONDS = 0.02
LIST_RATIO = 2.0
REQUESTS = 1.0
PLAN_SECONDS = 3.0
_KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "secret"}
_TOKEN = re.compile("<NextContinuationToken>(.*?)<")


@contextmanager
def far_bucket(bucket: QuickBucket) -> Iterator[str]:
    """Serve it from a thread; its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(bucket, SECONDS), loop).result()
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def compare_lists(url: str, rounds: int) -> bool:
    """Print what resolving takes; whether the limit is kept."""
    credential = SourceCredential(json.dumps(_KEYS), "the benchmark", url)

    def resolve() -> None:
        BucketSource().resolve("s3://models/empty", None, credential)

    def read() -> None:
        token = ""
        while True:
            with urlopen(f"{url}/models?list-type=2&prefix=empty/{token}") as answer:
                more = _TOKEN.search(answer.read().decode())
            if more is None:
                return
            token = f"&continuation-token={more[1]}"

    ours, plain = (_seconds(act, rounds) for act in (resolve, read))
    print(f"list: {ours * 1000:.0f} ms, ratio to plain requests {ours / plain:.2f} (limit {LIST_RATIO:.0f})")  # fmt: skip
    return ours <= LIST_RATIO * plain


def _seconds(act: Callable[[], None], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


class Project:
    """Sources in a directory of its own, locked and mirrored by a build."""

    def __init__(self, program: Path, directory: Path, sources: int, servers: tuple[str, str]) -> None:  # fmt: skip
        bucket, hub = servers
        named = {f"AWS_{name[4:].upper()}": value for name, value in _KEYS.items()}
        named |= {"AWS_ENDPOINT_URL": bucket, "HF_ENDPOINT": hub}
        self._command = ["env", *(f"{name}={value}" for name, value in named.items()), str(program)]
        self._directory = directory
        directory.mkdir()
        places = (f"s3://models/s{n}" if n % 2 else f"hf://bench/model-{n}" for n in range(sources))
        weights = {f"w{n}": {"source": place} for n, place in enumerate(places)}
        (directory / "trainctl.yaml").write_text(json.dumps({"project": {"name": "far"}, "weights": weights}))  # fmt: skip
        self.run("apply", "--auto-approve")

    def run(self, *words: str) -> float:
        """Run a command; its seconds."""
        return measured([*self._command, *words], self._directory).wall


def compare_plans(programs: list[Path], sources: int, rounds: int, bucket: QuickBucket, hub: QuickHub, url: str) -> bool:  # fmt: skip
    """Print what plans take; whether the limits are kept by the last program."""
    kept = True
    with tempfile.TemporaryDirectory(prefix="trainctl-far-") as scratch:
        projects = [Project(program, Path(scratch) / str(n), sources, (url, hub.url)) for n, program in enumerate(programs)]  # fmt: skip
        for words in (["plan"], ["plan", "--offline"]):
            for number, project in enumerate(projects):
                before = bucket.asked.total() + hub.asked.total()
                seconds = statistics.median(project.run(*words) for _ in range(rounds))
                asked = (bucket.asked.total() + hub.asked.total() - before) / rounds / sources
                name = "this build" if number == len(projects) - 1 else str(programs[number])
                print(f"{' '.join(words)} of {sources} sources, {name}: {seconds:.2f} s (limit {PLAN_SECONDS:.0f} s), {asked:.2f} requests a source (limit {REQUESTS:.0f})", flush=True)  # fmt: skip
            kept &= seconds <= PLAN_SECONDS and asked <= REQUESTS
    return kept


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--empty", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, action="append", default=[])
    options = parser.parse_args()
    bucket = QuickBucket()
    for number in range(options.empty):
        bucket.answer("PUT", f"/models/empty/{number % 50}/{number}", {}, b"")
    for number in range(options.sources):
        bucket.answer("PUT", f"/models/s{number}/model.bin", {}, b"%d" % number)
    programs = [*options.before, Path(sys.executable).with_name("trainctl")]
    with far_bucket(bucket) as url, quick_hub(MadeUp(1), SECONDS) as hub:
        kept = compare_lists(url, options.rounds)
        kept &= compare_plans(programs, options.sources, options.rounds, bucket, hub, url)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

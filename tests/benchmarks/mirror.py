"""Mirroring from a Hub on loopback, against the Hub's own library and a minimal loop, for three shapes of repository.

    python -m tests.benchmarks.mirror [--mib 512] [--files 2000] [--rounds 3] [--directory DIR]

One server process answers all sides; each side is a program of its own, and rounds take turns (``mirror_sides``). Ratios are those of
the medians. ``hub`` verifies nothing and syncs nothing; ours and the minimal loop hash every byte and sync every file.

| figure | limit |
|---|---|
| our rate by that of ``snapshot_download``, every shape | at least 1 |
| our rate by that of the minimal loop, one big file and a model | at least 0.85 |
| small files a second | at least 2,000 |
| resolving again what has not changed, beyond the start of a program | at most 300 ms |
| requests of that for each thousand files | one, and one for the revision |
| peak memory | under 300 MB |

What a side brought goes before the next begins: the memory that held it is used again, as a virtual machine may have to be given memory that it
never used, which takes as long as all else. Exits 1 where a limit isn't kept. The machine's load is printed, as it moves every one of these.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.benchmarks.mirror_sides import PIECE

AGAINST_HUB = 1.0
AGAINST_MINIMAL = 0.85
SMALL_FILES_A_SECOND = 2000
AGAIN_MILLISECONDS = 300
MEMORY_LIMIT_MB = 300
_SMALL_BYTES = 8192
_AGAIN = """
import sys, time
from pathlib import Path
from trainctl.base.retry import RetryPolicy
from trainctl.store.objects import DirectoryObjects
from trainctl.store.store import MirrorStore
from trainctl.sources.hf import HubSource
began = time.perf_counter()
resolved = HubSource(sys.argv[1]).resolve("hf://bench/model", None, None)
known = MirrorStore(DirectoryObjects(Path(sys.argv[2])), RetryPolicy()).survey([resolved]).sources[0]
assert known.listing, "everything should be there"
print((time.perf_counter() - began) * 1000)
"""


@dataclass(frozen=True)
class Measured:
    """Medians of one side; the peak is the largest."""

    seconds: float
    cpu: float
    peak_mb: float


def _big(root: Path, mib: int) -> None:
    _write(root / "model.safetensors", mib)


def _model(root: Path, mib: int) -> None:
    for number in range(4):
        _write(root / f"model-{number:05}-of-00004.safetensors", mib // 4)
    for number in range(8):
        (root / f"config-{number}.json").write_bytes(os.urandom(20_000))
    (root / "tokenizer.json").write_bytes(os.urandom(4 * PIECE))


def _small(root: Path, files: int) -> None:
    for number in range(files):
        path = root / f"{number // 100:03}" / f"{number:06}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(_SMALL_BYTES))


def _write(path: Path, mib: int) -> None:
    block = os.urandom(PIECE)
    with path.open("wb") as out:
        for number in range(max(1, mib)):
            out.write(number.to_bytes(8, "big") + block[8:])


SHAPES = {"small": _small, "big": _big, "model": _model}
"""What makes a shape in a directory: of so many files if they are small, else of so many MiB."""


@contextmanager
def serving_hub(*what: Path | int) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.benchmarks.quick_hub", *map(str, what)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


def _run(side: str, url: str, target: Path) -> dict[str, float]:
    """What a side made stays until all have been measured: a file system that takes back many files makes new ones slowly."""
    os.sync()
    command = [sys.executable, "-m", "tests.benchmarks.mirror_sides", side, url, str(target)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    document: dict[str, float] = json.loads(done.stdout)
    return document


def _measure(url: str, rounds: int, scratch: Path) -> dict[str, Measured]:
    seconds: dict[str, list[dict[str, float]]] = {"minimal": [], "product": [], "hub": []}
    for number in range(rounds):
        for side, each in seconds.items():
            target = scratch / f"{side}-{number}"
            each.append(_run(side, url, target))
            shutil.rmtree(target)
    return {
        side: Measured(
            statistics.median(row["seconds"] for row in each),
            statistics.median(row["cpu"] for row in each),
            max(row["peak_mb"] for row in each),
        )
        for side, each in seconds.items()
    }


def _asked(url: str) -> dict[str, int]:
    with urlopen(f"{url}/asked") as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


def _again(url: str, rounds: int, scratch: Path) -> tuple[float, int]:
    """Milliseconds to resolve again and to look at the mirror, and the requests that took."""
    target = scratch / "kept"
    command = [sys.executable, "-m", "tests.benchmarks.mirror_sides", "product", url, str(target)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    before = sum(_asked(url).values())
    look = [sys.executable, "-c", _AGAIN, url, str(target)]
    times = [
        float(subprocess.run(look, stdout=subprocess.PIPE, check=True).stdout)
        for _ in range(rounds)
    ]
    requests = (sum(_asked(url).values()) - before) // rounds
    return statistics.median(times), requests


def _say(what: str, figure: str, limit: str, *, kept: bool) -> bool:
    print(f"  {what}: {figure} (limit {limit}){'' if kept else ': NOT KEPT'}")
    return kept


def compare(name: str, root: Path, rounds: int, scratch: Path) -> bool:
    """Measure one shape and print it; whether its limits are kept."""
    files = [path for path in root.rglob("*") if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    with serving_hub(root) as url:
        result = _measure(url, rounds, scratch)
        again, requests = _again(url, rounds, scratch)
    print(f"{name}: {len(files)} files, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
    for side, item in result.items():
        rate = f"{size / 1e6 / item.seconds:.0f} MB/s, {len(files) / item.seconds:.0f} files/s"
        print(f"  {side}: {rate}, {item.cpu:.2f} s of CPU, peak memory {item.peak_mb:.0f} MB")
    ours = result["product"]
    hub, least = result["hub"].seconds / ours.seconds, result["minimal"].seconds / ours.seconds
    kept = _say(
        "ratio to snapshot_download", f"{hub:.2f}", f"{AGAINST_HUB:g}", kept=hub >= AGAINST_HUB
    )
    if name == "small":
        speed = len(files) / ours.seconds
        fast = speed >= SMALL_FILES_A_SECOND
        kept &= _say("small files a second", f"{speed:.0f}", f"{SMALL_FILES_A_SECOND}", kept=fast)
        print(f"  ratio to the minimal loop: {least:.2f}")
    else:
        limit = AGAINST_MINIMAL
        kept &= _say("ratio to the minimal loop", f"{least:.2f}", f"{limit}", kept=least >= limit)
    small = ours.peak_mb < MEMORY_LIMIT_MB
    kept &= _say("peak memory", f"{ours.peak_mb:.0f} MB", f"{MEMORY_LIMIT_MB} MB", kept=small)
    soon = again <= AGAIN_MILLISECONDS
    kept &= _say("resolving again", f"{again:.0f} ms", f"{AGAIN_MILLISECONDS} ms", kept=soon)
    most = 1 - (-len(files) // 1000)
    return kept & _say("its requests", str(requests), f"{most}", kept=requests <= most)


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        for name, make in SHAPES.items():
            scratch = Path(folder) / name
            root = scratch / "upstream"
            root.mkdir(parents=True)
            make(root, options.files if name == "small" else options.mib)
            kept &= compare(name, root, options.rounds, scratch)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""One large file of the Hub, by ranges over HTTP as trainctl asks for it, beside the same bytes through ``hf_xet``.

    python -m tests.benchmarks.xet [--mib 512] [--rounds 3] [--directory DIR]

The Hub hands out what lies in Xet storage over plain HTTP, too, with ranges and a sha256. What ``hf_xet`` could be better at is shown
where nothing but the client counts: it reads a store on this disk, without a server, and only writes what it is given. Ours asks a server that shares its processors, hashes every byte twice, and syncs.
``hf_xet capped`` has its buffers bounded to what is bearable beside training. Each side is a program of its own, rounds take turns, and ratios are those of the medians.

| figure | limit |
|---|---|
| our rate by that of ``hf_xet`` | at least 1: below it there would be a reason to use it |
| our peak memory | under 300 MB |

Exits 1 where a limit isn't kept.
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
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.mirror import MEMORY_LIMIT_MB, serving_hub

AGAINST_XET = 1.0
_MIB = 2**20
_CAPPED = {"download_buffer_limit": 64, "download_buffer_size": 32, "download_buffer_perfile_size": 32, "min_prefetch_buffer": 16}  # fmt: skip
_SIDE = """
import json, os, resource, sys, time
import hf_xet
store, wanted, target, settings = sys.argv[1:]
access = {"endpoint": "local://" + store, "token": "none", "token_expiry_unix_secs": int(time.time()) + 3600}
began = time.perf_counter()
session = hf_xet.XetSession(hf_xet.XetConfig().with_config(json.loads(settings)))
group = session.new_download_stream_group(**access)
with open(target, "wb") as out:
    for piece in group.download_stream(hf_xet.XetFileInfo(*json.loads(wanted))):
        out.write(piece)
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": used.ru_maxrss * 1024 / 1e6}))
"""
_STORE = """
import json, sys, time
import hf_xet
store, file = sys.argv[1:]
access = {"endpoint": "local://" + store, "token": "none", "token_expiry_unix_secs": int(time.time()) + 3600}
with hf_xet.XetSession().new_upload_commit(**access) as commit:
    upload = commit.start_upload_file(file)
made = upload.result().xet_info
print(json.dumps([made.hash, made.file_size]))
"""


def _python(code: str, *arguments: str, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _ours(url: str, target: Path, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.mirror_sides", "product", url, str(target)]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def compare(upstream: Path, scratch: Path, rounds: int) -> bool:
    """Measure the sides and print them; whether the limits are kept."""
    environment = {**os.environ, "HF_HOME": str(scratch / "home")}
    (file,) = upstream.iterdir()
    wanted = _python(_STORE, str(scratch / "store"), str(file), environment=environment)
    settings = {
        "hf_xet": "{}",
        "hf_xet capped": json.dumps({f"reconstruction.{name}": mib * _MIB for name, mib in _CAPPED.items()}),
    }  # fmt: skip
    seconds: dict[str, list[dict[str, float]]] = {"trainctl": [], **{side: [] for side in settings}}
    with serving_hub(upstream) as url:
        for number in range(rounds):
            for side, runs in seconds.items():
                target = scratch / f"{side}-{number}"
                if side == "trainctl":
                    python = _ours(url, target, environment)
                    shutil.rmtree(target)
                else:
                    words = (str(scratch / "store"), wanted, str(target), settings[side])
                    python = _python(_SIDE, *words, environment=environment)
                    if target.stat().st_size != file.stat().st_size:
                        sys.exit(f"{side} brought {target.stat().st_size} bytes")
                    target.unlink()
                runs.append(json.loads(python))
    return _print(seconds, file.stat().st_size)


def _print(seconds: Mapping[str, list[dict[str, float]]], size: int) -> bool:
    print(f"one file, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
    rates, peaks = {}, {}
    for side, runs in seconds.items():
        rates[side] = size / 1e6 / statistics.median(run["seconds"] for run in runs)
        peaks[side] = max(run["peak_mb"] for run in runs)
        cpu = statistics.median(run["cpu"] for run in runs)
        memory = f"peak memory {peaks[side]:.0f} MB"
        print(f"  {side}: {rates[side]:.0f} MB/s, {cpu:.2f} s of CPU, {memory}")
    best = max(rate for side, rate in rates.items() if side != "trainctl")
    ratio, ours = rates["trainctl"] / best, peaks["trainctl"]
    print(f"  ratio to hf_xet: {ratio:.2f} (limit {AGAINST_XET:g})")
    print(f"  our peak memory: {ours:.0f} MB (limit {MEMORY_LIMIT_MB} MB)")
    return ratio >= AGAINST_XET and ours < MEMORY_LIMIT_MB


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        scratch, upstream = Path(folder) / "sides", Path(folder) / "upstream"
        scratch.mkdir()
        upstream.mkdir()
        with (upstream / "model.safetensors").open("wb") as out:
            for _ in range(options.mib):
                out.write(os.urandom(_MIB))  # nothing twice, as Xet keeps nothing twice
        return 0 if compare(upstream, scratch, options.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())

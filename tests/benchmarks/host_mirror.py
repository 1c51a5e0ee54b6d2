"""Mirroring from a Hub on loopback into a mirror on a host, over a real sshd on 127.0.0.1, beside a mirror in a directory here.

    python -m tests.benchmarks.host_mirror [--files 20000] [--mib 1024] [--rounds 3]

Both sides are ``trainctl apply`` from nothing, against one server, and rounds take turns. Rates are by the seconds that apply says its
mirroring took, medians of all rounds, and ratios are of these. Small files have up to 10 kB. Those that are relayed are of a repository
that needs a token, and so go through the command. What processes take is sampled: the command's own, ``ssh`` and ``sshd``, and the
Python on the host. Questions are what the host asks the command while it mirrors.

| figure | limit |
|---|---|
| rate by that of the directory, small files | at least 0.7 |
| the same, one big file | at least 0.85 |
| the same, small files that are relayed | at least 0.25 |
| questions for each thousand small files | at most 20 |
| peak memory of the command and of the host's Python, each, small files | under 100 MB |
| the same, one big file | under 200 MB |

The limits for small files hold for some ten thousand of them: a host that has no program yet takes 0.3 s to load it, which is a third of
what 2,000 take altogether. Those of memory hold for 300,000, too. Exits 1 where a limit isn't kept. The machine's load is printed.
Needs sshd and ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.mirror import SHAPES, serving_hub
from tests.benchmarks.processes import Taken, Watched
from tests.support.machines.sshd import SSHD, Sshd, SshUser, sshd
from tests.support.projects.project import ProjectHarness, project

RATIOS = {"small": 0.7, "relayed": 0.25, "big": 0.85}
MEMORY_MB = {"small": 100, "relayed": 100, "big": 200}
QUESTIONS = 20
MOST_BYTES = 10_000
_TOKEN = "hf_" + "t" * 30
_SECONDS = 900
_ROOT = Path(__file__).resolve().parents[2]
_MANIFEST = """\
project: {name: bench}
mirror: {url: "MIRROR"}
clusters: {lab: {provider: ssh, hosts: [HOST]}}
weights: {model: "hf://bench/model"}
"""
_APPLY = """
import sys
from trainctl.cli.main import main
from trainctl.resources.host_mirror import SourceUrlProvider

asked = []

response = SourceUrlProvider.response
SourceUrlProvider.response = lambda self, question: asked.append(1) or response(self, question)
code = main(["apply", "--auto-approve", "--target", "weights.model"])
print("questions", len(asked), file=sys.stderr)
sys.exit(code)
"""
"""An apply that says at its end how often it was asked."""


@dataclass(frozen=True)
class Round:
    """One apply: seconds of its mirroring and of all of it, bytes, the host's questions, and what processes took."""

    seconds: float
    whole: float
    size: int
    questions: int
    taken: dict[str, Taken]


def mirrored(side: str, hub: str, folder: Path, variables: dict[str, str]) -> Round:
    """Apply once, into a mirror of that side's kind."""
    folder.mkdir()
    os.sync()
    user = SshUser(folder / "user")
    with project(folder) as created, sshd(folder / "gpu-0", user, address="127.0.0.1") as host:
        user.known_hosts.write_text(host.known)
        created.variables |= {**user.environment, **variables}
        created.variables |= {"HF_ENDPOINT": hub, "PYTHONPATH": str(_ROOT)}
        urls = {"host": f"node://lab{folder}/mirror", "directory": (folder / "mirror").as_uri()}
        text = _MANIFEST.replace("MIRROR", urls[side]).replace("HOST", json.dumps(host.settings))
        created.write({"trainctl.yaml": text})
        return _applied(created, host)


def _applied(project: ProjectHarness, host: Sshd) -> Round:
    began = time.perf_counter()
    with project.start(program=("-c", _APPLY)) as process:

        def kind_of(root: int, name: str) -> str:
            if root == process.pid:
                return "ssh" if name == "ssh" else "command"
            return "sshd" if name.startswith("sshd") else "host"

        watched = Watched({process.pid, host.process.pid}, kind_of)
        messages, errors = process.communicate(timeout=_SECONDS)
    taken = watched.end()
    whole = time.perf_counter() - began
    asked = re.search(r"questions (\d+)", errors)
    assert process.returncode == 0, f"{messages}\n{errors}"
    assert asked is not None, errors
    done = project.json("history", "weights.model")["entries"][0]["mirrored"]
    return Round(done["seconds"], whole, done["bytes"], int(asked[1]), taken)


def compare(shape: str, hub: Sequence[Path | int], files: int, rounds: int, folder: Path) -> bool:
    """Measure one shape and print it; whether its limits are kept."""
    variables = {"HF_TOKEN": _TOKEN} if shape == "relayed" else {}
    result: dict[str, list[Round]] = {"directory": [], "host": []}
    with serving_hub(*hub) as url:
        for number in range(rounds):
            for side, each in result.items():
                each.append(mirrored(side, url, folder / f"{side}-{number}", variables))
    print(
        f"{shape}: {files} files, {result['host'][0].size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}"
    )
    for side, each in result.items():
        _tell(side, files, each)
    ratio = _median(result["directory"]) / _median(result["host"])
    kept = _say(
        "ratio to the directory", f"{ratio:.2f}", RATIOS[shape], kept=ratio >= RATIOS[shape]
    )
    if shape != "big":
        asked = max(item.questions for item in result["host"]) / files * 1000
        few = asked <= max(QUESTIONS, 2000 / files)
        kept &= _say("questions for a thousand files", f"{asked:.0f}", QUESTIONS, kept=few)
    for kind in ("command", "host"):
        peak = max(item.taken[kind].peak_mb for item in result["host"])
        most = MEMORY_MB[shape]
        kept &= _say(f"peak memory in MB, {kind}", f"{peak:.0f}", most, kept=peak < most)
    return kept


def _median(rounds: Sequence[Round]) -> float:
    return statistics.median(item.seconds for item in rounds)


def _tell(side: str, files: int, rounds: Sequence[Round]) -> None:
    seconds = _median(rounds)
    whole = statistics.median(item.whole for item in rounds)
    rate = f"{rounds[0].size / 1e6 / seconds:.0f} MB/s, {files / seconds:.0f} files/s"
    print(f"  {side}: {rate}, {whole:.1f} s for all of apply, {rounds[0].questions} questions")
    for kind in sorted({kind for item in rounds for kind in item.taken}):
        cpu = statistics.median(item.taken[kind].cpu for item in rounds)
        peak = max(item.taken[kind].peak_mb for item in rounds)
        print(f"    {kind}: {cpu:.1f} s of CPU, peak memory {peak:.0f} MB")


def _say(what: str, figure: str, limit: float, *, kept: bool) -> bool:
    print(f"  {what}: {figure} (limit {limit:g}){'' if kept else ': NOT KEPT'}")
    return kept


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[20_000])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    absent = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    if absent:
        print(f"not measured, it needs {', '.join(absent)}; ratio to the directory, limit {RATIOS}")
        return 0
    kept = True
    shapes = [("small", count) for count in options.files] + [("relayed", options.files[0])]
    for shape, count in [*shapes, ("big", 1)]:
        with tempfile.TemporaryDirectory(prefix="trainctl-host-") as name:
            folder = Path(name)
            hub: tuple[Path | int, ...] = (count, MOST_BYTES)
            if shape == "big":
                hub = (folder / "upstream",)
                (folder / "upstream").mkdir()
                SHAPES["big"](folder / "upstream", options.mib)
            kept &= compare(shape, hub, count, options.rounds, folder)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""Mirroring that is killed, and mirroring twice at once, as processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub, serve
from tests.support.mirrors import REFERENCE, assert_sound, contents, leftovers, mirror_at
from tests.support.weights_data import noise

CHUNK = 2**20
ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "model.safetensors": noise(24 * CHUNK + 99),
    "config.json": b"{}",
    **{f"extra/{number}.txt": noise(1000, number) for number in range(20)},
}
TRACED = """
import os, signal, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate", "os.chmod", "shutil.rmtree") or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    ):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
from tests.support.mirroring import main
sys.addaudithook(hook)
code = main(*sys.argv[1:])
print("effects", -left, flush=True)
sys.exit(code)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def start(root: Path, hub: Hub, *address: str) -> subprocess.Popen[str]:
    words = [str(root), hub.url, str(CHUNK), *address]
    command = [sys.executable, "-m", "tests.support.mirroring", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return str(json.loads(output.splitlines()[-1])["listing"])


@pytest.mark.parametrize("megabytes", [2, 12, 22])
def test_killed_in_the_middle_it_resumes(hub: Hub, tmp_path: Path, megabytes: int) -> None:
    """After SIGKILL the next process takes the partial over and asks only for what was not there.

    What was received may be ten pieces ahead of what was hashed and written down.
    """
    process = start(tmp_path, hub)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["done"] >= megabytes * CHUNK:
            process.kill()
            break
    process.wait()
    process.stdout.close()
    assert_sound(tmp_path)
    hub.seen.clear()
    listing = finish(start(tmp_path, hub))
    mirror = mirror_at(tmp_path, CHUNK)
    assert contents(mirror, listing) == FILES
    offsets = [seen.headers.get("Range", "bytes=0-") for seen in hub.asked("model.safetensors")]
    assert len(offsets) <= 1
    assert all(int(text[6:-1]) >= (megabytes - 10) * CHUNK for text in offsets)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("seed", range(4))
def test_of_small_files_a_kill_takes_those_in_memory_only(
    hub: Hub, tmp_path: Path, seed: int
) -> None:
    """Killed twice amid a thousand of them, at random: at most 256 that had come are asked for again each time."""
    files = {f"{number:04}.txt": noise(2000, number) for number in range(1000)}
    hub.add("acme/model", files)
    moments = sorted(random.Random(seed).sample(range(100, 900), 2))
    for moment in moments:
        process = start(tmp_path, hub)
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["files"] >= moment:
                process.kill()
                break
        process.wait()
        process.stdout.close()
        assert_sound(tmp_path)
    listing = finish(start(tmp_path, hub))
    asked = [hub.asked(name) for name in files]

    assert contents(mirror_at(tmp_path, CHUNK), listing) == files
    assert sum(map(len, asked)) <= len(files) + len(moments) * (256 + 8)
    assert leftovers(tmp_path) == []
    assert_sound(tmp_path)


def test_killed_between_any_two_effects_it_converges(hub: Hub, tmp_path: Path) -> None:
    """Killed before each change of the disk in turn, the mirror is sound, and the next run makes it whole."""
    small = {"model.safetensors": noise(3 * CHUNK + 5), "config.json": b"{}"}
    hub.add("acme/model", small)
    effects = _effects(hub, tmp_path / "count")
    assert effects > 20
    for step in range(1, effects + 1):
        root = tmp_path / str(step)
        assert _traced(hub, root, step).returncode in (0, -signal.SIGKILL)
        assert_sound(root)
        listing = finish(start(root, hub))
        assert contents(mirror_at(root, CHUNK), listing) == small
        assert leftovers(root) == []


def _effects(hub: Hub, root: Path) -> int:
    done = _traced(hub, root, 0)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def _traced(hub: Hub, root: Path, step: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRACED, str(step), str(root), hub.url, str(CHUNK)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_twice_at_once_the_work_is_done_once(hub: Hub, tmp_path: Path) -> None:
    """Two processes that mirror the same source end with the same listing, and the large file crossed once."""
    first, second = start(tmp_path, hub), start(tmp_path, hub)
    listings = {finish(first), finish(second)}
    assert len(listings) == 1
    assert contents(mirror_at(tmp_path, CHUNK), listings.pop()) == FILES
    assert len(hub.asked("model.safetensors")) == 1
    assert_sound(tmp_path)
    assert leftovers(tmp_path) == []


def test_who_waits_says_for_whom(hub: Hub, tmp_path: Path) -> None:
    """As long as another process brings the same revision it is named: who runs it, by what that one wrote into the mirror, and its number."""
    first = start(tmp_path, hub, "weights.first")
    assert first.stdout is not None
    for line in first.stdout:
        if json.loads(line)["done"] >= 3 * CHUNK:
            os.kill(first.pid, signal.SIGSTOP)
            break
    second = start(tmp_path, hub)
    assert second.stdout is not None
    said = json.loads(second.stdout.readline())
    os.kill(first.pid, signal.SIGCONT)

    assert said == {
        "waiting": f"waits for {REFERENCE.owner} (process {first.pid}), who brings the same"
    }
    assert finish(first) == finish(second)


def test_a_process_that_stands_still_harms_nobody(hub: Hub, tmp_path: Path) -> None:
    """A stopped holder whose lease is taken from it wakes up, finishes or fails, and the mirror is sound."""
    sleeper = start(tmp_path, hub)
    assert sleeper.stdout is not None
    for line in sleeper.stdout:
        if json.loads(line)["done"] >= 3 * CHUNK:
            os.kill(sleeper.pid, signal.SIGSTOP)
            break
    for lease in tmp_path.glob("partial/*.lease"):
        lease.unlink()
    listing = finish(start(tmp_path, hub))
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.communicate(timeout=60)
    assert contents(mirror_at(tmp_path, CHUNK), listing) == FILES
    assert_sound(tmp_path)
    assert finish(start(tmp_path, hub)) == listing

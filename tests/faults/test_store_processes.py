"""Processes that copy into one store, in a directory or a bucket, and collect garbage: killed, suspended and at once."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.support.servers.buckets import BucketServer, moto
from tests.support.servers.hub import Hub, serve
from tests.support.storage.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    immediate_retry,
    ingest,
)
from tests.support.storage.store_process import objects_at
from tests.support.storage.weights_data import noise
from tests.support.tiers import points, sample
from trainctl.store import keys
from trainctl.store.gc import GcOptions
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

CHUNK = 2**18
ROOT = Path(__file__).resolve().parents[2]
BIG = "model.safetensors"
FILES = {
    BIG: noise(24 * CHUNK + 99),
    "config.json": b"{}",
    **{f"extra/{number}.txt": noise(1000, number) for number in range(20)},
}
SIZE = sum(map(len, FILES.values()))
OTHER = Reference("l2", "weights.x", "o", "p")


@pytest.fixture(scope="module")
def bucket() -> Iterator[BucketServer]:
    with moto() as running:
        yield running


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, as ``tests.support.storage.store_process`` names it."""
    if request.param == "directory":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('bucket').endpoint}#{secrets.token_hex(4)}"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def store_at(place: str) -> MirrorStore:
    return MirrorStore(objects_at(place), immediate_retry(), CHUNK)


def start(place: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.storage.store_process", place, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def start_copy(place: str, hub: Hub, lethal: int = 0, address: str = REFERENCE.address) -> subprocess.Popen[str]:  # fmt: skip
    return start(place, "ingest", hub.url, str(CHUNK), address, str(lethal))


def await_bytes(process: subprocess.Popen[str], least: int) -> None:
    """Wait until a copy reports so many bytes, or ends before."""
    assert process.stdout is not None
    next(line for line in process.stdout if json.loads(line).get("done", least) >= least)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def listing_of(process: subprocess.Popen[str]) -> str:
    """The ID of the listing that a copy made."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return str(json.loads(output.splitlines()[-1])["listing"])


def files_of(place: str, listing_id: str) -> dict[str, bytes]:
    store = store_at(place)
    listing = store.load_listing(listing_id)
    assert listing is not None
    return contents(store, listing)


def keys_in(place: str, *prefixes: str) -> list[str]:
    objects = objects_at(place)
    return [stat.key for prefix in prefixes for stat in objects.list(prefix)]


def test_a_killed_copy_is_resumed_at_its_last_chunk(place: str, hub: Hub) -> None:
    process = start_copy(place, hub)
    await_bytes(process, 12 * CHUNK)
    kill(process)
    assert_sound(objects_at(place), CHUNK)
    marked = [key for key in keys_in(place, keys.PARTIAL) if ".whole." not in key and "/pack." not in key]  # fmt: skip
    before = len(hub.seen)
    assert files_of(place, listing_of(start_copy(place, hub))) == FILES
    again = [seen for seen in hub.seen[before:] if seen.path.endswith(BIG)]
    assert len(again) <= 1 + len(marked)
    assert not marked or all(seen.headers.get("Range") for seen in again)
    assert keys_in(place, keys.PARTIAL, keys.LEASES) == []


@pytest.mark.parametrize("lethal", sample(points(199, 12), 2))
def test_a_copy_killed_before_any_effect_is_finished_by_the_next(
    tmp_path: Path, hub: Hub, lethal: int
) -> None:
    place = str(tmp_path / "store")
    process = start_copy(place, hub, lethal)
    process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGKILL)
    assert_sound(tmp_path / "store", CHUNK)
    store = store_at(place)
    store.gc(GcOptions())
    assert files_of(place, listing_of(start_copy(place, hub))) == FILES
    assert store.verify().ok
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


@pytest.mark.parametrize("lethal", sample(points(59, 6), 2))
def test_a_collection_killed_before_any_effect_is_finished_by_the_next(
    tmp_path: Path, lethal: int
) -> None:
    store = store_at(str(tmp_path))
    kept = {"shared": FILES[BIG], "kept": b"kept"}
    for reference, files in ((REFERENCE, kept), (OTHER, FILES)):
        source = MemorySource(files, piece=2**16)
        ingest(store, source.resolve(f"memory://{reference.address}", None, None), source, reference)  # fmt: skip
    store.drop_reference(OTHER.lineage, OTHER.address)
    process = start(str(tmp_path), "gc", str(lethal))
    process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGKILL)
    assert store.verify().ok
    store.gc(GcOptions())
    assert store.verify().ok
    assert store.stored_bytes() == len(FILES[BIG]) + len(b"kept")


def test_two_copies_at_once_do_the_work_once(place: str, hub: Hub) -> None:
    first, second = start_copy(place, hub), start_copy(place, hub, address="weights.second")
    listings = {listing_of(first), listing_of(second)}
    assert len(listings) == 1
    assert files_of(place, listings.pop()) == FILES
    assert len(hub.asked(BIG)) == 1
    assert keys_in(place, keys.PARTIAL, keys.LEASES) == []


def test_copies_beside_collections_find_what_they_copied(place: str) -> None:
    """Three projects copy, read what they have, and drop it, while collections go on, one of which is killed and replaced."""
    collections = [start(place, "gc", "forever") for _ in range(2)]

    def work(lineage: int) -> None:
        for turn in range(3):
            copy_and_drop(place, lineage, turn)

    try:
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(work, lineage) for lineage in range(3)]
            while wait(running, 2).not_done:
                kill(collections[0])
                collections[0] = start(place, "gc", "forever")
    finally:
        for collection in collections:
            kill(collection)
    assert [future.result() for future in running] == [None] * 3
    assert store_at(place).verify().ok
    store_at(place).gc(GcOptions())
    assert store_at(place).stored_bytes() == 0


def copy_and_drop(place: str, lineage: int, turn: int) -> None:
    """Copy files of which others copy some, too; read all of them; drop the reference."""
    store = MirrorStore(objects_at(place), immediate_retry(), 512)
    some = range(lineage + turn, lineage + turn + 4)
    files = {f"f{number}": noise(1300, number) for number in some}
    files |= {f"small-{number}": noise(90, number) for number in some}
    source = MemorySource(files, piece=512)
    reference = Reference(f"lineage-{lineage}", "weights.model", "ann", "demo")
    listing = ingest(store, source.resolve(f"hf://acme/{turn}", None, None), source, reference)
    assert contents(store, listing) == files
    store.drop_reference(reference.lineage, reference.address)

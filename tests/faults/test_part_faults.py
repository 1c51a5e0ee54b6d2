"""A large file by several connections, through real sockets, with what can go wrong on one of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.storage.mirrors import assert_sound, contents, ingest, leftovers, mirror_at
from tests.support.storage.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.errors import SourceInterrupted, SourceMismatch, SourceNotFound, UserInterrupt
from trainctl.plugin_api.sources import ByteRange, SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.store.ingestion import file_transfer
from trainctl.store.store import MirrorStore

CHUNK = 2**20
BIG = noise(17 * CHUNK + 12345)
FILES = {"model.safetensors": BIG, "config.json": b"{}"}
PARTS = -(-len(BIG) // CHUNK)


@pytest.fixture(autouse=True)
def _parts_of_smaller_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfer, "PARALLEL_MIN_BYTES", len(BIG) // 2)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def mirrored(
    hub: Hub,
    root: Path,
    credential: SourceCredential | None = None,
    attempts: int = 4,
    silence: float = 60,
) -> tuple[MirrorStore, Listing]:
    source = HubSource(hub.url, silence)
    resolved = source.resolve("hf://acme/model", None, credential)
    mirror = mirror_at(root, CHUNK, attempts)
    return mirror, ingest(mirror, resolved, source, credential=credential)


def ranges(hub: Hub) -> list[tuple[int, int]]:
    """What was asked of the large file, first and last byte of each request, in order of the first."""
    asked = [one.headers.get("Range") or "" for one in hub.asked("model.safetensors")]
    found = [re.fullmatch(r"bytes=(\d+)-(\d+)", one) for one in asked]
    return sorted((int(one[1]), int(one[2])) for one in found if one)


def test_each_chunk_is_asked_for_once(hub: Hub, tmp_path: Path) -> None:
    """Parts of one chunk each, over several connections, make the same content as a single stream does."""
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    assert ranges(hub) == [(at, min(at + CHUNK, len(BIG)) - 1) for at in range(0, len(BIG), CHUNK)]
    assert len(hub.asked("model.safetensors")) == PARTS
    assert 1 < hub.connections <= 6
    assert_sound(tmp_path, CHUNK)
    assert leftovers(tmp_path) == []


def test_a_server_without_ranges_is_asked_for_the_whole(hub: Hub, tmp_path: Path) -> None:
    """Where parts are answered with the whole file, that is taken, in one go."""
    hub.ranges = False
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    assert [one for one in hub.asked("model.safetensors") if "Range" not in one.headers]


@pytest.mark.parametrize("kind", ["cut", "silent"])
def test_of_a_part_that_breaks_off_the_rest_is_asked_for(
    hub: Hub, tmp_path: Path, kind: str
) -> None:
    """What came of a part is kept, its rest is asked for, and no other part suffers."""
    middle = 7 * CHUNK + CHUNK // 4 + 5
    hub.faults = [HttpFault(kind, "model.safetensors", times=5, at=middle)]
    silence = 0.5 if kind == "silent" else 60
    mirror, listing = mirrored(hub, tmp_path, attempts=999, silence=silence)
    assert contents(mirror, listing) == FILES
    assert all(last - first < CHUNK for first, last in ranges(hub))


def test_what_is_given_up_is_carried_on_from_the_last_good_chunk(hub: Hub, tmp_path: Path) -> None:
    """Patience ends for one part: the error names the file; the next time nothing is asked for that was kept in order."""
    hub.faults = [HttpFault("cut", "model.safetensors", times=999, at=9 * CHUNK)]
    with pytest.raises(SourceInterrupted, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    assert not [one for one in threading.enumerate() if one.name == "part"]
    hub.faults.clear()
    hub.seen.clear()
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    again = [
        re.fullmatch(r"bytes=(\d+)-(\d*)", seen.headers["Range"])
        for seen in hub.asked("model.safetensors")
    ]
    starts = [int(found[1]) for found in again if found]
    assert min(starts) >= 9 * CHUNK
    assert all(start % CHUNK == 0 for start in starts)
    assert leftovers(tmp_path) == []


def test_a_flipped_bit_in_a_part_is_refused(hub: Hub, tmp_path: Path) -> None:
    """The whole is hashed in order whoever brought it when; nothing of a wrong file is kept."""
    hub.faults = [HttpFault("flip", "model.safetensors", times=999, at=5 * CHUNK + 3)]
    with pytest.raises(SourceMismatch, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    assert leftovers(tmp_path) == []
    assert not list(tmp_path.glob("listings/*"))


def test_a_refusal_of_one_part_ends_the_others(hub: Hub, tmp_path: Path) -> None:
    """An answer that is no matter of patience is the error at once, and no connection goes on."""
    hub.faults = [HttpFault("status", "model.safetensors", times=999, status=404)]
    with pytest.raises(SourceNotFound, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    assert not [one for one in threading.enumerate() if one.name == "part"]


def test_stopping_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    """Cancelled amid a file, what came in order is not asked for again, and progress ends at the whole."""
    source = HubSource(hub.url)
    resolved = source.resolve("hf://acme/model", None, None)
    mirror = mirror_at(tmp_path, CHUNK)
    cancelled = threading.Event()

    def stop(done: int, total: int, files: int) -> None:
        if done >= 8 * CHUNK:
            cancelled.set()

    with pytest.raises(UserInterrupt):
        ingest(mirror, resolved, source, progress=stop, cancelled=cancelled)
    for one in threading.enumerate():
        if one.name == "part":
            one.join(10)
    seen: list[tuple[int, int, int]] = []
    listing = ingest(mirror, resolved, source, progress=lambda *now: seen.append(now))
    assert contents(mirror, listing) == FILES
    assert seen[-1] == (resolved.size, resolved.size, 2)


def test_the_hub_is_asked_once_where_its_storage_is(hub: Hub, tmp_path: Path) -> None:
    """Parts come from where the Hub sent to at first, without its token; a link that is refused later is made anew."""
    with serve(hub):
        credential = SourceCredential(hub.token, "test")
        mirror, listing = mirrored(hub, tmp_path / "a", credential)
        assert contents(mirror, listing) == FILES
        big = hub.asked("model.safetensors")
        stored = [one for one in big if one.path.startswith("/cdn/")]
        assert len(stored) == PARTS
        assert len(big) - len(stored) <= 4
        assert not [one for one in stored if "Authorization" in one.headers]
        source = HubSource(hub.url)
        resolved = source.resolve("hf://acme/model", None, credential)
        (file,) = (one for one in resolved.files if one.path == "model.safetensors")
        with source.read_range(resolved, file, ByteRange(0, 10), credential) as fill:
            assert fill is not None
            fill(memoryview(bytearray(10)))
        hub.faults = [HttpFault("status", "model.safetensors", times=1, status=403)]
        got = bytearray(10)
        with source.read_range(resolved, file, ByteRange(CHUNK, 10), credential) as fill:
            assert fill is not None
            fill(memoryview(got))
        assert got == BIG[CHUNK : CHUNK + 10]

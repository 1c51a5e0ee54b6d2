"""A large file by several connections: the ranges that are requested, and faults of one of them."""

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
from trainctl.errors import SourceError, SourceInterrupted
from trainctl.plugin_api.sources import ByteRange, SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.store import file_transfer
from trainctl.store.store import MirrorStore

CHUNK = 2**20
BIG = noise(11 * CHUNK + 12345)
FILES = {"model.safetensors": BIG, "config.json": b"{}"}
LAST = len(BIG) - 11 * CHUNK
PARTS = [
    *((at, at + CHUNK // 4 - 1) for at in range(0, CHUNK, CHUNK // 4)),
    *((at, at + CHUNK - 1) for at in range(CHUNK, 10 * CHUNK, CHUNK)),
    *((at, at + CHUNK // 4 - 1) for at in range(10 * CHUNK, 11 * CHUNK, CHUNK // 4)),
    *((at, min(at - (-LAST // 4), len(BIG)) - 1) for at in range(11 * CHUNK, len(BIG), -(-LAST // 4))),
]  # fmt: skip
"""First and last byte of each range: all connections fetch the first chunk and the last two."""


@pytest.fixture(autouse=True)
def _parallel_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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
    timeout: float = 60,
) -> tuple[MirrorStore, Listing]:
    source = HubSource(hub.url, timeout)
    resolved = source.resolve("hf://acme/model", None, credential)
    mirror = mirror_at(root, CHUNK, attempts)
    return mirror, ingest(mirror, resolved, source, credential=credential)


def ranges(hub: Hub) -> list[tuple[int, int]]:
    """First and last byte of each request for a part of the large file, sorted."""
    requested = [request.headers.get("Range") or "" for request in hub.asked("model.safetensors")]
    matches = [re.fullmatch(r"bytes=(\d+)-(\d+)", text) for text in requested]
    return sorted((int(match[1]), int(match[2])) for match in matches if match)


def part_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "part"]


def test_each_byte_is_requested_once(hub: Hub, tmp_path: Path) -> None:
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    assert ranges(hub) == PARTS
    assert len(hub.asked("model.safetensors")) == len(PARTS)
    assert 1 < hub.connections <= 6
    assert_sound(tmp_path, CHUNK)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", ["cut", "silent"])
def test_the_rest_of_an_interrupted_part_is_requested(hub: Hub, tmp_path: Path, kind: str) -> None:
    middle = 7 * CHUNK + CHUNK // 4 + 5
    hub.faults = [HttpFault(kind, "model.safetensors", times=3, at=middle)]
    timeout = 0.5 if kind == "silent" else 60
    mirror, listing = mirrored(hub, tmp_path, attempts=999, timeout=timeout)
    assert contents(mirror, listing) == FILES
    assert all(last - first < CHUNK for first, last in ranges(hub))


def test_the_next_attempt_resumes_at_the_last_good_chunk(hub: Hub, tmp_path: Path) -> None:
    """The error names the file; no chunk that was stored in order is requested again."""
    hub.faults = [HttpFault("cut", "model.safetensors", times=999, at=9 * CHUNK)]
    with pytest.raises(SourceInterrupted, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    assert part_threads() == []
    hub.faults.clear()
    hub.seen.clear()
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    again = [request.headers["Range"] for request in hub.asked("model.safetensors")]
    starts = [int(match[1]) for text in again if (match := re.match(r"bytes=(\d+)-", text))]
    assert min(starts) >= 9 * CHUNK
    assert all(start % CHUNK == 0 for start in starts)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", ["flip", "status"])
def test_a_corrupt_or_refused_part_ends_the_others(hub: Hub, tmp_path: Path, kind: str) -> None:
    """The file is hashed in order, so a flipped bit is found; nothing of it is stored."""
    hub.faults = [HttpFault(kind, "model.safetensors", times=999, at=5 * CHUNK + 3, status=404)]
    with pytest.raises(SourceError, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    assert part_threads() == []
    assert kind == "status" or leftovers(tmp_path) == []
    assert not list(tmp_path.glob("listings/*"))


def test_the_hub_is_asked_once_for_its_storage(hub: Hub, tmp_path: Path) -> None:
    """Parts come from the redirect's URL, without the token; a URL that is refused is renewed."""
    with serve(hub):
        credential = SourceCredential(hub.token, "test")
        mirror, listing = mirrored(hub, tmp_path / "a", credential)
        assert contents(mirror, listing) == FILES
        requests = hub.asked("model.safetensors")
        stored = [request for request in requests if request.path.startswith("/cdn/")]
        assert len(stored) == len(PARTS)
        assert len(requests) - len(stored) <= 4
        assert not [record for record in stored if "Authorization" in record.headers]
        source = HubSource(hub.url)
        resolved = source.resolve("hf://acme/model", None, credential)
        (file,) = (item for item in resolved.files if item.path == "model.safetensors")
        part = bytearray(10)
        for offset, faults in ((0, []), (CHUNK, [HttpFault("status", file.path, status=403)])):
            hub.faults = faults
            span = ByteRange(offset, 10)
            with source.read_range(resolved, file, span, credential) as fill:
                assert fill is not None
                fill(memoryview(part))
            assert part == BIG[offset : offset + 10]

"""A server whose places are all taken: whatever holds one comes to its end, and gives it back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Directory, contents
from tests.support.hub import Fault, Hub, serve
from tests.support.mirrors import REFERENCE
from tests.support.mirrors import contents as contents_of
from tests.support.weights_data import noise
from trainctl.base.listing import ResolvedSource
from trainctl.base.retry import Retry
from trainctl.errors import SourceCut, SourceGone
from trainctl.spi.sources import Credential
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.sources import gates
from trainctl.weights.sources.gates import GATES, Gate
from trainctl.weights.sources.hf import HubSource

SECONDS = 20
CHUNK = 4096
LARGE = {f"{number}.bin": noise(3 * CHUNK + number, number) for number in range(8)}
SMALL = {f"{number:02}.json": noise(600, number) for number in range(40)}
HASTY = Retry(wait=lambda cancelled, seconds: None)
"""Tries again at once, at the same gate."""
URI = "hf://acme/model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Has large files, small ones, and two places for us."""
    GATES.clear()
    monkeypatch.setattr(gates, "MOST_AT_ONCE", 2)
    with serve() as running:
        running.add("acme/model", {**LARGE, **SMALL}, gated=True)
        running.page_size = 7
        yield running
    GATES.clear()


def opened(hub: Hub) -> tuple[HubSource, ResolvedSource, Credential]:
    source, credential = HubSource(hub.url), Credential(hub.token, "the test")
    return source, source.resolve(URI, None, credential), credential


def ended(*acts: Callable[[], object]) -> None:
    """All of it comes to its end, at the same time; what it raised is raised."""
    ends: list[Future[object]] = []
    for act in acts:
        ends.append(Future())
        threading.Thread(target=_settle, args=(ends[-1], act), daemon=True).start()
    assert not wait(ends, SECONDS).not_done
    for one in ends:
        one.result()


def _settle(end: Future[object], act: Callable[[], object]) -> None:
    try:
        end.set_result(act())
    except BaseException as error:  # noqa: BLE001  it is raised by who waits
        end.set_exception(error)


def assert_all_free(hub: Hub) -> None:
    """As many may ask as ever."""
    (gate,) = GATES.values()
    inside = threading.Barrier(2)

    def ask() -> None:
        with gate.passed("it", hub.url):
            inside.wait(SECONDS)

    ended(ask, ask)


def test_who_came_first_has_the_next_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives a place back and wants another is behind those who wait already: a listing needn't wait for the end of a transfer."""
    monkeypatch.setattr(gates, "MOST_AT_ONCE", 1)
    gate, order = Gate(), list[str]()

    def late() -> None:
        with gate.passed("it", "host"):
            order.append("late")

    waiting = threading.Thread(target=late, daemon=True)
    with gate.passed("it", "host"):
        waiting.start()
        while not gate.crowd:
            pass
    with gate.passed("it", "host"):
        order.append("again")
    waiting.join(SECONDS)
    assert order == ["late", "again"]


def test_listings_links_and_files_come_through_few_places(hub: Hub, tmp_path: Path) -> None:
    """Pages, redirects within the server, links, streams that break off, and mirrors, all at once."""
    hub.cdn = hub.url
    source, resolved, credential = opened(hub)
    hub.faults = [Fault("cut", name, times=3, at=CHUNK + 100) for name in LARGE]
    hub.faults += [Fault("status", name, status=500) for name in list(SMALL)[:5]]
    directory = DirectoryMirror(tmp_path / "directory", HASTY, chunk_bytes=CHUNK)
    bucket = BucketMirror(Shelf(Directory(tmp_path / "bucket"), CHUNK), HASTY)

    def mirrored_in_directory() -> None:
        listing = directory.mirror(resolved, source, REFERENCE, credential=credential)
        assert contents_of(directory, listing.id) == {**LARGE, **SMALL}

    def mirrored_in_bucket() -> None:
        listing = bucket.mirror(resolved, HubSource(hub.url), REFERENCE, credential=credential)
        assert contents(bucket, listing.id) == {**LARGE, **SMALL}

    def linked() -> None:
        for file in resolved.files:
            HASTY.run(partial(source.link, resolved, file, credential), threading.Event())

    def listed() -> None:
        again = partial(source.resolve, URI, None, credential)
        assert HASTY.run(again, threading.Event()) == resolved

    ended(mirrored_in_directory, mirrored_in_bucket, linked, linked, listed, listed)
    assert_all_free(hub)


def test_who_has_memory_for_a_chunk_gets_its_place_back(hub: Hub, tmp_path: Path) -> None:
    """Every stream breaks off amid its first chunk: who then has the places can't wait for the memory of those who have none."""
    source, resolved, credential = opened(hub)
    hub.faults = [Fault("cut", name, at=100) for name in LARGE]
    mirror = BucketMirror(Shelf(Directory(tmp_path), CHUNK), HASTY)

    ended(lambda: mirror.mirror(resolved, source, REFERENCE, credential=credential))
    assert_all_free(hub)


def test_what_is_given_up_gives_its_place_back(hub: Hub) -> None:
    """Streams that nobody reads to their end, or that end by an error of whoever reads, and requests that are refused."""
    source, resolved, credential = opened(hub)
    file = next(one for one in resolved.files if one.path in LARGE)

    def left_amid() -> None:
        with source.open(resolved, file, 0, credential) as pieces:
            next(pieces)
            raise KeyboardInterrupt

    def refused() -> None:
        HubSource(hub.url).resolve("hf://acme/nothing", None, credential)

    def cut() -> None:
        hub.faults = [Fault("cut", file.path, at=10)]
        with source.open(resolved, file, 0, credential) as pieces:
            list(pieces)

    for act, error in ((left_amid, KeyboardInterrupt), (refused, SourceGone), (cut, SourceCut)):
        for _ in range(3):
            with pytest.raises(error):
                act()
    assert_all_free(hub)

"""Fetching from a bucket by links that somebody else signs: what a node asks for, when, and what it makes of refusals."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.weights_data import noise
from trainctl.base.failure import Failure
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.protocol.conversation import Gone
from trainctl.node.content.parts import Part, parts_of
from trainctl.node.transfer.http_origin import LinkedOrigin
from trainctl.node.transfer.links import Links


@dataclass
class Store:
    """A bucket that hands out content to whoever has a link that isn't spent. ``cut``: how many bytes an answer has, of the first."""

    contents: dict[str, bytes]
    ranges: bool = True
    spent: set[str] = field(default_factory=set)
    cut: int | None = None
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    port: int = 0


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            digest, _, token = self.path.strip("/").partition("?")
            store.seen.append((token, self.headers.get("Range")))
            data = store.contents.get(digest)
            if token in store.spent or data is None:
                self.send_response(403 if token in store.spent else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            ranged = begin if store.ranges else None
            if ranged:
                data = data[int(ranged[1]) : int(ranged[2] or len(data)) + 1]
            self.send_response(206 if ranged else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            cut, store.cut = store.cut, None
            self.wfile.write(data if cut is None else data[:cut])
            self.close_connection = cut is not None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Operator:
    """Makes links, each with a number of its own; ``asked`` are the contents of each question."""

    store: Store
    packs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By content the pack that it is in, and from which byte on."""
    asked: list[list[str]] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)
    gone: bool = False

    def ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.gone:
            raise Gone
        self.asked.append(list(question["contents"]))
        self.lost.append(question["lost"])
        made = len(self.asked)
        host = f"http://127.0.0.1:{self.store.port}"
        places = [self.packs.get(one, (one, None)) for one in question["contents"]]
        objects = list(dict.fromkeys(one for one, _ in places))
        return {
            "links": [f"{host}/{one}?link={made}" for one in objects],
            "places": [(objects.index(one), offset) for one, offset in places],
        }


def listing_of(files: Mapping[str, bytes]) -> Listing:
    """What a listing says of them."""
    rows = []
    for path, data in files.items():
        pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        chunks = [hashlib.sha256(one).hexdigest() for one in pieces] if len(pieces) > 1 else []
        digest = hashlib.sha256(data).hexdigest()
        rows.append({"path": path, "size": len(data), "sha256": digest, "chunks": chunks})
    return Listing.parse({"version": 1, "chunk_bytes": CHUNK_BYTES, "files": rows})


def stored(files: Mapping[str, bytes]) -> Store:
    """A bucket's mirror of them: no object is larger than a chunk."""
    pieces = [
        data[at : at + CHUNK_BYTES]
        for data in files.values()
        for at in range(0, max(1, len(data)), CHUNK_BYTES)
    ]
    return Store({hashlib.sha256(one).hexdigest(): one for one in pieces})


def opened(operator: Operator, listing: Listing, patience: float = 5.0) -> LinkedOrigin:
    links = Links(operator, listing)  # type: ignore[arg-type]
    links.begin(listing.contents)
    return LinkedOrigin({"patience": patience}, links)


def read(origin: LinkedOrigin, part: Part) -> bytes:
    view = memoryview(bytearray(part.chunk.length))
    origin.read(*origin.place_of(part), view, lambda piece: None)
    return bytes(view)


def all_parts(listing: Listing) -> list[Part]:
    return [part for file in listing.contents for part in parts_of(file)]


def test_links_are_asked_for_in_batches_when_their_turn_comes() -> None:
    """2,000 small files cost two questions of at most 1,024 contents, and each content is asked for once."""
    files = {f"{n:04}": b"%d" % n for n in range(2000)}
    listing = listing_of(files)
    operator = Operator(Store({}))
    links = Links(operator, listing)  # type: ignore[arg-type]
    links.begin(listing.contents)

    found = [links.of(part.chunk.sha256) for part in all_parts(listing)]

    assert len(set(found)) == 2000
    assert [len(one) for one in operator.asked] == [1024, 976]
    assert len({one for asked in operator.asked for one in asked}) == 2000


def test_no_more_than_64_chunks_are_in_a_batch() -> None:
    """So that the last link is used before it expires; small files among them don't count."""
    size = 100 * CHUNK_BYTES
    chunks = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(100)]
    large = {"path": "b", "size": size, "sha256": "b" * 64, "chunks": chunks}
    small = {"path": "a", "size": 1, "sha256": "a" * 64, "chunks": []}
    listing = Listing.parse({"version": 1, "chunk_bytes": CHUNK_BYTES, "files": [small, large]})
    operator = Operator(Store({}))
    links = Links(operator, listing)  # type: ignore[arg-type]
    links.begin(listing.contents)

    for one in ["a" * 64, *chunks]:
        links.of(one)

    assert [len(one) for one in operator.asked] == [65, 36]


def packed(files: Mapping[str, bytes], gap: bytes = b"") -> tuple[Store, Operator]:
    """A bucket that has the files in one pack, and who makes links to it."""
    pack, places = b"", {}
    for data in files.values():
        places[hashlib.sha256(data).hexdigest()] = len(pack)
        pack += data + gap
    store = Store({"pack": pack})
    return store, Operator(store, {one: ("pack", offset) for one, offset in places.items()})


def read_small(origin: LinkedOrigin, files: Mapping[str, bytes]) -> list[bytes]:
    sizes = {hashlib.sha256(data).hexdigest(): len(data) for data in files.values()}
    found = origin.read_small(sizes)
    return [bytes(found[one]) for one in sizes]


@pytest.mark.parametrize("gap", [0, 100])
@pytest.mark.parametrize("ranges", [True, False])
def test_small_files_that_are_neighbours_in_a_pack_come_by_one_request(
    ranges: bool, gap: int
) -> None:
    """What lies between them is dropped; a server that ignores ranges is read from the beginning. An empty file is asked of nobody."""
    files = {f"{n:02}": noise(100 + n, n) for n in range(50)} | {"empty": b""}
    wanted = {path: data for path, data in files.items() if path > "05"}
    store, operator = packed(files, b"?" * gap)
    with serving(store):
        store.ranges = ranges
        origin = opened(operator, listing_of(files))
        found = read_small(origin, wanted)
        origin.close()

    assert found == list(wanted.values())
    assert len(store.seen) == 1


def test_small_files_that_lie_far_apart_are_asked_for_one_by_one() -> None:
    """To read what lies between them would take longer than another request."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    store, operator = packed(files, b"?" * 2**17)
    with serving(store):
        origin = opened(operator, listing_of(files))
        found = read_small(origin, files)
        origin.close()

    assert found == list(files.values())
    assert len(store.seen) == 5


def test_what_broke_off_in_a_pack_is_taken_up_with_the_file_it_broke_in() -> None:
    """Files that were whole aren't asked for again."""
    files = {f"{n}": noise(1000, n) for n in range(9)}
    store, operator = packed(files)
    with serving(store):
        store.cut = 4500
        origin = opened(operator, listing_of(files))
        found = read_small(origin, files)
        origin.close()

    assert found == list(files.values())
    assert [ranged for _, ranged in store.seen] == ["bytes=0-8999", "bytes=4000-8999"]


def test_small_files_whose_pack_is_gone_are_asked_for_where_they_are_now() -> None:
    """A 404 is told to the caller, who looks again; what it says then is where they are."""
    files = {f"{n}": noise(1000, n) for n in range(9)}
    store, operator = packed(files)
    with serving(store):
        origin = opened(operator, listing_of(files))
        some = dict(list(files.items())[:3])
        first = read_small(origin, some)
        store.contents = {"other": store.contents["pack"]}
        for one, (_, offset) in operator.packs.items():
            operator.packs[one] = ("other", offset)
        rest = read_small(origin, {path: files[path] for path in files if path not in some})
        origin.close()

    assert first + rest == list(files.values())
    assert operator.lost == [False, True]


def test_chunks_of_a_large_file_are_objects_of_their_own() -> None:
    """Each is read whole, under its own digest."""
    files = {"big": noise(CHUNK_BYTES + 10)}
    listing = listing_of(files)
    with serving(stored(files)) as store:
        origin = opened(Operator(store), listing)
        found = b"".join(read(origin, part) for part in all_parts(listing))
        origin.close()

    assert found == files["big"]
    assert [ranged for _, ranged in store.seen] == [None, None]


def test_a_link_that_has_expired_is_made_anew_once() -> None:
    """A refused link is asked for again; a fresh one that is refused is the error, and nothing is tried for ever."""
    files = {"a": b"a", "b": b"b"}
    listing = listing_of(files)
    with serving(stored(files)) as store:
        operator = Operator(store)
        store.spent = {"link=1"}
        origin = opened(operator, listing)
        first = read(origin, all_parts(listing)[0])
        store.spent = {f"link={n}" for n in range(9)}
        with pytest.raises(Failure, match="refuses a link"):
            read(origin, all_parts(listing)[1])
        origin.close()

    assert first == b"a"
    assert len(operator.asked) <= 4


@pytest.mark.parametrize("ranges", [True, False])
def test_what_broke_off_is_taken_up_where_it_was(ranges: bool) -> None:
    """The rest is asked for by range; from a server that ignores ranges the beginning is dropped."""
    files = {"a": noise(300_000)}
    listing = listing_of(files)
    with serving(stored(files)) as store:
        store.cut, store.ranges = 100_000, ranges
        origin = opened(Operator(store), listing)
        found = read(origin, all_parts(listing)[0])
        origin.close()

    assert found == files["a"]
    assert store.seen[1][1] == "bytes=100000-"


def test_an_operator_who_left_is_said_to_have_left() -> None:
    """No link comes any more: the delivery ends, and what arrived is kept."""
    files = {"a": b"a"}
    with serving(stored(files)) as store:
        origin = opened(Operator(store, gone=True), listing_of(files))
        with pytest.raises(Failure, match="has ended"):
            read(origin, all_parts(listing_of(files))[0])


def test_content_that_the_bucket_lacks_is_named() -> None:
    """A 404 is no reason to wait."""
    files = {"a": b"a"}
    with serving(Store({})) as store:
        origin = opened(Operator(store), listing_of(files))
        with pytest.raises(Failure, match="does not have content"):
            read(origin, all_parts(listing_of(files))[0])

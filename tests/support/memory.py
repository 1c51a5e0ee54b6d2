"""How many bytes of memory a node takes at most for what it does with so many small files: ``python -m tests.support.memory WHAT COUNT PLACE``.

In a process of its own, where nobody else takes any. A listing of some hundred files is a long one here.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trainctl.base import packed
from trainctl.base.failure import Failure
from trainctl.base.files import remove_tree
from trainctl.node.cache.leases import Leases
from trainctl.node.cache.references import References
from trainctl.node.cache.reservations import reserved
from trainctl.node.cache.room import make_room
from trainctl.node.cache.trees import Trees
from trainctl.node.cache.verify import cache_verify
from trainctl.node.content.blobs import stamp
from trainctl.node.content.listing import File, Listing
from trainctl.node.content.parts import to_hex
from trainctl.node.system import numbers
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.owners import Owners
from trainctl.node.transfer.shared import SharedCache

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
"""Bytes a file: an object for each takes some hundreds."""
_FEW, _MANY = 1_500, 6_000


def growth(what: str, place: Path, module: str = "tests.support.memory") -> float:
    """How many bytes more of memory each file takes. ``module`` knows what is done; it gets a directory of its own."""
    found = []
    for count in (_FEW, _MANY):
        (place / str(count)).mkdir()
        found.append(_peak(what, count, place / str(count), module))
    return (found[1] - found[0]) / (_MANY - _FEW)


def _peak(what: str, count: int, place: Path, module: str) -> int:
    """Bytes, as a process of its own says."""
    done = subprocess.run(
        [sys.executable, "-m", module, what, str(count), str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def listing_of(first: int, count: int) -> Listing:
    """So many small files, in directories of some hundreds."""
    return Listing(packed.packed(_files(first, count), tuple, File))


def _files(first: int, count: int) -> Iterator[File]:
    for one in range(first, first + count):
        data = _data(one)
        yield File(f"{one // 500:04}/{one:08}", len(data), hashlib.sha256(data).hexdigest(), ())


def _data(number: int) -> bytes:
    """A content of its own for each number."""
    return b"%d" % number


def _cache(place: Path, listing: Listing) -> Layout:
    """A cache that holds the listing, for one lineage."""
    layout = Layout(str(place))
    for file in listing.contents:
        blob = layout.blob(file.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(_data(int(Path(file.path).name)))
        blob.chmod(0o444)
        os.utime(blob, (stamp(file.sha256), stamp(file.sha256)))
    for directory in (layout.partial, layout.locks, layout.trees, layout.seals):
        directory.mkdir()
    Trees(layout).build(listing, "file:./x")
    References(layout).refer("one", listing, "somebody")
    return layout


def _peers(place: Path, count: int) -> Callable[[], object]:
    listing = listing_of(0, count)
    holds = {node: to_hex(one % 4 == 0 for one in range(count)) for node in ("a", "b", "c")}
    return lambda: Owners(listing, "b", holds).line(count - 1)


def _verify(place: Path, count: int) -> Callable[[], object]:
    _cache(place, listing_of(0, count))

    def verify() -> None:
        said = cache_verify({"root": str(place), "origin": None}, lambda event: None, io.BytesIO())
        assert [(row["outcome"], row["files"]) for row in said["listings"]] == [("whole", count)]

    return verify


def _room(place: Path, count: int) -> Callable[[], object]:
    here, coming = listing_of(0, count), listing_of(10**7, count)
    layout = _cache(place, here)

    def make() -> None:
        with reserved(layout, coming):
            Leases(layout).take("run", here.id, "one")
            with suppress(Failure):
                make_room(layout, coming, coming.size, "")
                raise AssertionError("a live run needs what is there")
            Leases(layout).release("run")
            make_room(layout, coming, coming.size, "")
        assert not any(layout.blobs.glob("*/*"))

    return make


def _shared(place: Path, count: int) -> Callable[[], object]:
    """Two lineages use the directory; something larger than its limit makes the contents of one go, and then the other goes."""
    cache = SharedCache(str(place / "shared"), 5)
    stray = cache.blob("0" * 64)
    first, second = listing_of(0, count), listing_of(10**7, count)
    for file in (*first.contents, *second.contents):
        cache.blob(file.sha256).parent.mkdir(parents=True, exist_ok=True)
        cache.blob(file.sha256).touch()
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"much of it")

    def use() -> None:
        cache.refer("one", first)
        cache.refer("two", second)
        cache.forget("one")
        assert cache.has(second.files[0]._replace(size=0))
        assert not cache.has(first.files[0]._replace(size=0))
        assert cache.bring([File("x", 1, "1" * 64, ())], {"1" * 64}, [], lambda: None) == set()
        assert list(stray.parents[1].glob("*/*")) == [stray]

    return use


def _removal(place: Path, count: int) -> Callable[[], object]:
    (place / "flat").mkdir(parents=True)
    for number in range(count):
        (place / "flat" / f"{number:08}").touch()
    return lambda: remove_tree(place / "flat")


def measured(kinds: Mapping[str, Callable[[Path, int], Callable[[], object]]]) -> int:
    """Do it with few files, for what is made once; then with as many as the arguments say, and print the peak."""
    what, count, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    packed.AS_TUPLE = 500
    packed._RUN, packed._BLOCK = 1000, 64
    packed._MOST_RUNS = 3
    numbers._SHELVES = 16
    list(
        map(sys.intern, map(str, range(10**5)))
    )  # pathlib does, and the table doubles now and then
    held = [
        sys.intern(f"{one}") for one in range(10**5)
    ]  # pathlib does, and makes a small table anew often
    begun = kinds[what]
    begun(place / "few", 10)()
    do = begun(place / "many", count)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    do()
    print(tracemalloc.get_traced_memory()[1] - before)
    return 0 if held else 1


if __name__ == "__main__":
    its = {
        "peers": _peers, "verify": _verify, "room": _room, "removal": _removal, "shared": _shared,
    }  # fmt: skip
    sys.exit(measured(its))

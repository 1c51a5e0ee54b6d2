"""The sides that ``bucket_mirror`` compares, each a program of its own so that its peak memory and CPU time are its own.

    python -m tests.benchmarks.bucket_mirror_sides SIDE ARGUMENT …

``least HUB ENDPOINT PREFIX`` and ``product HUB ENDPOINT PREFIX`` mirror; ``fill FILES DIRECTORY`` makes a mirror of so many small
files in a directory that stands for a bucket, and ``verify DIRECTORY``, ``repair DIRECTORY`` and ``gc DIRECTORY`` look after it.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from tests.benchmarks.quick_hub import COMMIT, REPO
from tests.support.bucket_mirrors import Counted, Directory, mirror_in
from tests.support.buckets import Bucket
from trainctl.model.files import CHUNK_BYTES, ResolvedSource, SourceFile, in_order
from trainctl.spi.sources import Credential
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.verify import Outcome
from trainctl.weights.retry import Retry
from trainctl.weights.sources.hf import HubSource

_SMALL_AT_ONCE = 32
_UPLOADS = 8
REFERENCE = Reference("l", "weights.x", "me", "bench")
_OTHER = Reference("l", "weights.y", "me", "bench")


def product(hub: str, endpoint: str, prefix: str) -> dict[str, float]:
    """What trainctl does."""
    mirror = mirror_in(Bucket(endpoint, "models"), prefix, CHUNK_BYTES)
    source = HubSource(hub)
    resolved = source.resolve(f"hf://{REPO}", None, None)
    mirror.mirror(resolved, source, REFERENCE)
    counted = mirror.shelf.objects
    assert isinstance(counted, Counted)
    return {"writes": counted.asked["put"] + counted.asked["delete"]}


def least(hub: str, endpoint: str, prefix: str) -> dict[str, float]:
    """Every small file is asked for and put, and every chunk of a large one as it arrives."""
    objects = mirror_in(Bucket(endpoint, "models"), prefix, CHUNK_BYTES).shelf.objects
    resolved = HubSource(hub).resolve(f"hf://{REPO}", None, None)

    def bring(file: SourceFile) -> None:
        whole, sent = hashlib.sha256(), list[Future[None]]()
        address = f"{hub}/{REPO}/resolve/{COMMIT}/{quote(file.path)}"
        with urlopen(address) as answer, ThreadPoolExecutor(_UPLOADS) as pool:
            for _ in range(0, file.size, CHUNK_BYTES):
                chunk = answer.read(CHUNK_BYTES)
                whole.update(chunk)
                key = f"blobs/{hashlib.sha256(chunk).hexdigest()}"
                sent.append(pool.submit(objects.put, key, chunk))
                if len(sent) > _UPLOADS:
                    sent.pop(0).result()

    def bring_small(file: SourceFile) -> None:
        with urlopen(f"{hub}/{REPO}/resolve/{COMMIT}/{quote(file.path)}") as answer:
            data = answer.read()
        objects.put(f"blobs/{hashlib.sha256(data).hexdigest()}", data)

    with ThreadPoolExecutor(_SMALL_AT_ONCE) as pool:
        list(pool.map(bring_small, (one for one in resolved.files if one.size < CHUNK_BYTES)))
    for file in resolved.files:
        if file.size >= CHUNK_BYTES:
            bring(file)
    return {}


class MadeUp:
    """See WeightSource: small files whose content is their name."""

    def __init__(self, files: int) -> None:
        self._files = files

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        names = (f"data/{number:08}.txt" for number in range(self._files))
        return ResolvedSource(
            uri, "1", in_order(SourceFile(one, len(one), f"etag:{one}") for one in names)
        )

    def server(self, uri: str, credential: Credential | None) -> str | None:
        return None

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        return None

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        return True

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        yield iter([file.path.encode()[offset:]])


def _made_up(root: str) -> BucketMirror:
    return BucketMirror(Shelf(Directory(Path(root))), Retry())


def fill(files: str, root: str) -> dict[str, float]:
    """All files for one reference, and a third of them for another."""
    for count, reference in ((int(files), REFERENCE), (int(files) // 3, _OTHER)):
        source = MadeUp(count)
        resolved = source.resolve(f"hf://bench/{count}", None, None)
        _made_up(root).mirror(resolved, source, reference)
    return {}


def verify(root: str) -> dict[str, float]:
    """Everything is right."""
    found = _made_up(root).verify(None)
    assert not found.findings
    return {"contents": found.blobs}


def repair(root: str) -> dict[str, float]:
    """One pack is lost, and of another a byte is wrong."""
    packs = sorted((Path(root) / keys.BLOBS).rglob("*"), key=lambda path: path.stat().st_size)
    packs[-1].unlink()
    packs[-2].write_bytes(b"-" + packs[-2].read_bytes()[1:])
    mirror = _made_up(root)

    @cache
    def resolved(uri: str) -> ResolvedSource:
        return MadeUp(int(uri.rpartition("/")[2])).resolve(uri, None, None)

    def origin(record: Mapping[str, object], halt: threading.Event) -> Origin:
        return Origin(MadeUp(0), resolved(str(record["source"])), None, mirror.retry)

    found = mirror.verify(origin)
    mended = [one for one in found.findings if one.outcome is Outcome.REPAIRED]
    assert {one.what for one in found.findings if one not in mended} == {"slices changed"}
    return {"contents": len(mended)}


def gc(root: str) -> dict[str, float]:
    """The larger reference is dropped."""
    mirror = _made_up(root)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    found = mirror.collect(Collecting(grace_seconds=0))
    assert found.blobs
    return {"contents": found.blobs}


SIDES: dict[str, Callable[..., dict[str, float]]] = {
    "least": least, "product": product, "fill": fill, "verify": verify, "repair": repair, "gc": gc,
}  # fmt: skip


if __name__ == "__main__":
    began = time.perf_counter()
    more = SIDES[sys.argv[1]](*sys.argv[2:])
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
    }
    print(json.dumps({**figures, **more}))

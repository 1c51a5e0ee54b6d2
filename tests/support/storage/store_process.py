"""A process that uses a store, to be killed or measured: ``python -m tests.support.storage.store_process PLACE VERB …``.

PLACE is a directory, or ENDPOINT#PREFIX in a bucket of moto's. With LETHAL the process kills itself before its effect of that number.

- ``ingest HUB CHUNK_BYTES ADDRESS LETHAL`` copies hf://acme/model and prints progress and the listing.
- ``gc LETHAL`` collects once, ``gc forever`` until it is killed.
- ``measure COUNT SIZE parts|stream`` copies so many generated files in, verifies them, copies them again, lists them, drops the
  reference and collects; prints the peak of memory after each step, in bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.memory_peak import peak
from tests.support.projects.kill_at_effect import kill_at_effect
from tests.support.storage.mirrors import REFERENCE, immediate_retry, ingest
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, TrainctlError
from trainctl.store.gc import GcOptions
from trainctl.store.objects import DirectoryObjects
from trainctl.store.store import MirrorStore

_PIECE = 2**20


def objects_at(place: str) -> ObjectStore:
    """The objects in a directory or bucket."""
    endpoint, _, prefix = place.partition("#")
    if not prefix:
        return DirectoryObjects(Path(place))
    # most processes need no libraries of clouds
    from tests.support.servers.bucket_stores import objects_in
    from tests.support.servers.buckets import BucketServer

    return objects_in(BucketServer(endpoint, "models"), prefix)


def copy(place: str, hub: str, chunk_bytes: str, address: str, lethal: str) -> None:
    from trainctl.sources.hf import HubSource

    source = HubSource(hub)
    resolved = source.resolve("hf://acme/model", None, None)
    kill_at_effect(int(lethal))
    listing = ingest(
        MirrorStore(objects_at(place), immediate_retry(), int(chunk_bytes)),
        resolved,
        source,
        replace(REFERENCE, address=address),
        progress=lambda done, total, files: report(done=done, files=files),
    )
    report(listing=listing.id)


def collect(place: str, lethal: str) -> None:
    store = MirrorStore(objects_at(place), immediate_retry())
    if lethal != "forever":
        kill_at_effect(int(lethal))
        store.gc(GcOptions())
        return
    while True:
        try:
            store.gc(GcOptions())
        except LockHeld:
            continue


class GeneratedUpstream:
    """Files that repeat their name and the number of the MiB."""

    source = "hf://made/up"

    def __init__(self, parts: bool) -> None:
        self._parts = parts

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        yield (self._piece(file, at) for at in range(offset, file.size, _PIECE))

    @contextmanager
    def read_range(
        self, file: SourceFile, offset: int, length: int
    ) -> Iterator[Callable[[memoryview], None] | None]:
        at = offset

        def fill(into: memoryview) -> None:
            nonlocal at
            into[:] = self._piece(file, at)[: len(into)]
            at += len(into)

        yield fill if self._parts else None

    def checksum(self, file: SourceFile) -> str:
        return ""

    def _piece(self, file: SourceFile, at: int) -> bytes:
        word = f"{file.path} {at // _PIECE}.".encode()
        return (word * (_PIECE // len(word) + 1))[: min(_PIECE, file.size - at)]


def measure(place: str, count: str, size: str, how: str) -> None:
    files = [
        SourceFile(f"{number:08}", int(size), f"etag:{number}") for number in range(int(count))
    ]
    resolved = ResolvedSource(GeneratedUpstream.source, "1", tuple(files))
    store = MirrorStore(objects_at(place), immediate_retry())
    upstream = GeneratedUpstream(how == "parts")
    steps: dict[str, Callable[[], object]] = {
        "ingest": lambda: store.ingest(resolved, upstream, REFERENCE),
        "verify": store.verify,
        "again": lambda: store.ingest(resolved, upstream, REFERENCE),
        "inventory": store.inventory,
        "drop": lambda: store.drop_reference(REFERENCE.lineage, REFERENCE.address),
        "gc": lambda: store.gc(GcOptions()),
    }
    report(**{name: (act(), peak())[1] for name, act in steps.items()})


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    try:
        place, verb, *arguments = sys.argv[1:]
        verbs: dict[str, Callable[..., None]]
        verbs = {"ingest": copy, "gc": collect, "measure": measure}
        verbs[verb](place, *arguments)
    except TrainctlError as error:
        report(error=error.code, text=str(error))
        sys.exit(error.exit_code)

"""What looking after very many files in a bucket costs: seconds, requests and peak memory of each thing that is done with a mirror.

    python -m tests.benchmarks.bucket_scale [--packed 200000] [--alone 30000] [--milliseconds 0] [--only VERB …]

The bucket is ``quick_bucket``'s. Files of some bytes, which are put into packs, and then files that are objects of their own: chunks are small there, so
that nobody has to bring a megabyte for each. Each step is a program of its own. Exits 1 where one took 300 MB or more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice

from tests.support.bucket_mirrors import Counted, counted, mirror_in
from tests.support.buckets import Bucket
from tests.support.mirror_memory import MadeUp
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.where import Where
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.verify import Outcome

MOST_MB = 300
ALONE_BYTES = 8
"""A chunk where each file is one."""
REFERENCE = Reference("l", "weights.x", "me", "bench")
_OTHER = Reference("l", "weights.y", "me", "bench")
_LINKS_AT_ONCE = 64


class Many:
    """A mirror of so many files; ``size`` is that of each where it is an object of its own, else 0."""

    def __init__(self, endpoint: str, files: int, size: int) -> None:
        self.source = MadeUp(files)
        self.third = MadeUp(files, every=3)
        chunk_bytes = size or CHUNK_BYTES
        self.mirror = mirror_in(Bucket(endpoint, "models"), f"mirror-{size}", chunk_bytes)

    @property
    def objects(self) -> Counted:
        """What is asked is counted there."""
        return counted(self.mirror)

    def first(self) -> None:
        """Mirror it."""
        self.mirror.mirror(self.source.resolved(), self.source, REFERENCE)  # type: ignore[arg-type]

    def third_of_it(self) -> None:
        """A third of it, for another reference."""
        self.mirror.mirror(self.third.resolved(), self.third, _OTHER)  # type: ignore[arg-type]

    def again(self) -> None:
        """An apply that has nothing to do."""
        self.first()

    def plan(self) -> None:
        """Of what is whole."""
        (known,) = self.mirror.look([self.source.resolved()]).known
        assert known.listing is not None

    def newer(self) -> None:
        """A plan of another version, of which all is there."""
        resolved = replace(self.source.resolved(), revision="2", known_as="2")
        (known,) = self.mirror.look([resolved]).known
        assert known.listing is None
        assert all(here for _, _, here in known.files)

    def list(self) -> None:
        """``mirror list``."""
        assert len(self.mirror.inventory().rows) == 2

    def verify(self) -> None:
        """Everything is right."""
        assert not self.mirror.verify(None).findings

    def repair(self) -> None:
        """One object is lost, and of another, if there is one, a byte is wrong: whole packs where there are such."""
        lost, *others = islice(self.objects.list(keys.BLOBS), 2)
        for one in others:
            data = self.objects.get(one.key) or b""
            self.objects.put(one.key, b"-" + data[1:])
        self.objects.delete([lost.key])
        self._mend(len(others))

    def repair_much(self) -> None:
        """Every tenth object is wrong from its beginning to its end."""
        for number, one in enumerate(list(self.objects.list(keys.BLOBS))):
            if number % 10 == 0:
                self.objects.put(one.key, b"-" * one.size)
        self._mend(2)

    def _mend(self, least: int) -> None:
        @cache
        def resolved() -> ResolvedSource:
            return self.source.resolved()

        def origin(record: Mapping[str, object], halt: threading.Event) -> Origin:
            return Origin(self.source, resolved(), None, self.mirror.retry)  # type: ignore[arg-type]

        found = self.mirror.verify(origin).findings
        assert len(found) > least
        assert all(one.outcome is not Outcome.WRONG for one in found)

    def dry(self) -> None:
        """``mirror gc --dry-run``, when the larger source has been dropped."""
        self.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
        assert self.mirror.collect(Collecting(dry_run=True)).blobs

    def gc(self) -> None:
        """``mirror gc``."""
        assert self.mirror.collect(Collecting(grace_seconds=0)).blobs

    def sign(self) -> None:
        """The links of a delivery of everything, as a node asks for them."""
        listing = self.mirror.kept(self.source.resolved())
        assert listing is not None
        named = DiskMap()
        named.update((one.sha256, "") for one in listing.files)
        where = Where(self.mirror.shelf, named)
        files = iter(listing.files)
        while some := [one.sha256 for one in islice(files, _LINKS_AT_ONCE)]:
            assert len(named.find(some)) == len(set(some))
            places = where.of(listing.id, some, lost=False)
            objects = {
                place.pack if place else one for one, place in zip(some, places, strict=True)
            }
            self.objects.sign([keys.blob(one) for one in objects], 60)


_UNITS = {"seconds": "s", "cpu": "s of CPU", "peak_mb": "MB"}
STEPS = ("first", "again", "plan", "newer", "third_of_it", "list", "sign", "verify", "repair", "repair_much", "dry", "gc")  # fmt: skip


def step(verb: str, endpoint: str, files: str, size: str) -> None:
    """One of them, and its figures as JSON."""
    many = Many(endpoint, int(files), int(size))
    began = time.perf_counter()
    act: Callable[[], None] = getattr(many, verb)
    act()
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
        **many.objects.asked,
    }
    print(json.dumps(figures))


@contextmanager
def serving(milliseconds: float) -> Iterator[str]:
    """A bucket's server; its URL."""
    command = [sys.executable, "-m", "tests.benchmarks.quick_bucket", str(milliseconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


def measure(endpoint: str, files: int, size: int, verbs: list[str]) -> bool:
    """Take the steps and print what each costs; whether all stay below the limit."""
    kept = True
    kind = f"objects of {size} bytes" if size else "packed files"
    print(f"{files} {kind}, load {os.getloadavg()[0]:.1f} (limit {MOST_MB} MB)")
    for verb in verbs:
        command = [sys.executable, "-m", "tests.benchmarks.bucket_scale", "step", verb]
        done = subprocess.run(
            [*command, endpoint, str(files), str(size)], stdout=subprocess.PIPE, check=True
        )
        found = json.loads(done.stdout)
        told = [f"{found.pop(one):.1f} {unit}" for one, unit in _UNITS.items()]
        asked = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        print(f"  {verb}: {', '.join(told)}; {asked}", flush=True)
        kept &= json.loads(done.stdout)["peak_mb"] < MOST_MB
    return kept


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packed", type=int, default=200_000)
    parser.add_argument("--alone", type=int, default=30_000)
    parser.add_argument("--milliseconds", type=float, default=0.0)
    parser.add_argument("--only", nargs="*", choices=STEPS, default=STEPS)
    options = parser.parse_args()
    kept = True
    for files, size in ((options.packed, 0), (options.alone, ALONE_BYTES)):
        if files:
            with serving(options.milliseconds) as endpoint:
                kept &= measure(endpoint, files, size, options.only)
    return 0 if kept else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        step(*sys.argv[2:])
        sys.exit()
    sys.exit(main())

"""A node's cache under deliveries, evictions, kills, flips and full disks: the tree of a run is complete."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.node_program.nodes import run_spec
from tests.support.node_program.verb_forks import CHUNK_BYTES, VerbForkServer
from trainctl.base.system.processes import process_record
from trainctl.node.cache.eviction import CacheInventory
from trainctl.node.cache.holds import UNSTARTED_SECONDS, hold_listing
from trainctl.node.runs.record import COMPLETED, DEPLOY_FAILED, NodeRun
from trainctl.node.system.layout import Layout

LIMIT = 50_000
SIZES = (0, 100, 5_000, 9_000, 20_000, 30_000)
CONTENTS = tuple(random.Random(number).randbytes(size) for number, size in enumerate(SIZES))
FILES: tuple[dict[str, int], ...] = (
    {"a": 1, "deep/b": 2},
    {"a": 1, "big": 4},
    {"x/y/z": 3, "empty": 0, "deep/b": 2},
    {"huge": 5, "big": 4},
    {"huge": 5, "p": 1, "q": 1},
)
"""Listings: their files by content. The fourth is as large as the limit."""

LINEAGES = ("one", "two")
which = st.integers(0, len(FILES) - 1)
contents = st.integers(1, len(SIZES) - 1)
numbers = st.integers(0, 30_000)
"""What is drawn never depends on what happened, which may differ a little from one run to the next."""
lineages = st.sampled_from(LINEAGES)
_KINDS = {"StorageError", "InsufficientSpace", "NodeError", "SourceMismatch"}


def sha256(number: int) -> str:
    return hashlib.sha256(CONTENTS[number]).hexdigest()


def document(listing: int) -> dict[str, Any]:
    return {"version": 1, "chunk_bytes": CHUNK_BYTES, "files": list(_files(listing))}


def _files(listing: int) -> Iterator[dict[str, Any]]:
    for path, number in sorted(FILES[listing].items()):
        data = CONTENTS[number]
        starts = range(0, len(data), CHUNK_BYTES) if len(data) > CHUNK_BYTES else ()
        chunks = [hashlib.sha256(data[at : at + CHUNK_BYTES]).hexdigest() for at in starts]
        yield {"path": path, "size": len(data), "sha256": sha256(number), "chunks": chunks}


def listing_id(listing: int) -> str:
    text = json.dumps(document(listing), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


IDS = tuple(listing_id(number) for number in range(len(FILES)))


@dataclass
class Held:
    """A run that may need a listing: delivered for it, or running; ``certain`` if its delivery said that it was done."""

    lineage: str
    listing: int
    running: bool = False
    certain: bool = True


class NodeCache(RuleBasedStateMachine):
    """The real node code in two processes that fork for each verb; runs are supervised by this process."""

    compared = 0

    @initialize()
    def start(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="trainctl-cache-machine-"))
        self.layout = Layout(str(self.base / "node"), str(self.base / "cache"))
        self.zygotes = [VerbForkServer(), VerbForkServer()]
        self.keys = itertools.count()
        self.runs: dict[str, Held] = {}
        self.flipped: set[int] = set()
        """Contents with wrong bytes that their times give away; in ``hidden`` those that don't."""
        self.hidden: set[int] = set()
        self.torn: set[int] = set()
        """Listings whose tree or seal lost something in a check."""
        self.lost_mirror: set[int] = set()
        for number in range(len(SIZES)):
            self._mirror(number)

    def teardown(self) -> None:
        if hasattr(self, "zygotes"):
            for zygote in self.zygotes:
                zygote.close()
            for directory, _, _ in os.walk(self.base):
                Path(directory).chmod(0o700)
            shutil.rmtree(self.base)

    # -- requests

    def _mirror(self, number: int) -> None:
        for blob, data in self._mirrored(number).items():
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(data)

    def _mirrored(self, number: int) -> dict[Path, bytes]:
        """The objects of a content: its chunks."""
        data = CONTENTS[number]
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data) or 1, CHUNK_BYTES)]
        digests = {hashlib.sha256(chunk).hexdigest(): chunk for chunk in chunks}
        blobs = self.base / "mirror" / "blobs" / "sha256"
        return {blobs / digest[:2] / digest: chunk for digest, chunk in digests.items()}

    def _request(self, **more: Any) -> dict[str, Any]:
        cache = {"dir": str(self.layout.cache), "size": LIMIT}
        return {"root": str(self.layout.root), "cache": cache, **more}

    @property
    def _location(self) -> dict[str, str]:
        return {"path": str(self.base / "mirror")}

    def _delivery(self, lineage: str, listing: int) -> tuple[str, dict[str, Any]]:
        key = f"run-{next(self.keys)}"
        return key, self._request(
            lineage=lineage,
            owner="somebody",
            lease=key,
            source=f"file:./{listing}",
            listing=document(listing),
            mirror=self._location,
        )

    def _call(self, method: str, request: Mapping[str, Any], **how: int) -> dict[str, Any]:
        self.zygotes[0].send(method, request, **how)
        return self.zygotes[0].answer()

    # -- what is known

    def _tree(self, listing: int) -> Path:
        return self.layout.tree(IDS[listing])

    def _pinned(self, *listings: int) -> int:
        wanted = {*listings, *(held.listing for held in self.runs.values())}
        numbers = {number for listing in wanted for number in FILES[listing].values()}
        return sum(SIZES[number] for number in numbers)

    def _delivered(self, key: str, lineage: str, listing: int, output: Mapping[str, Any]) -> None:
        if "error" in output:
            assert output["error"]["kind"] in _KINDS, output
            return
        self.runs[key] = Held(lineage, listing, certain="result" in output)
        if "result" in output:
            replaced = set(FILES[listing].values()) & self.flipped
            self.torn |= {n for n, files in enumerate(FILES) if replaced & set(files.values())}
            self.flipped -= replaced
            self.hidden -= replaced
            self.torn.discard(listing)
            self._forget_damage_of_what_is_gone()

    def _known_whole(self, listing: int) -> bool:
        damaged = self.flipped | self.hidden
        return listing not in self.torn and not damaged & set(FILES[listing].values())

    def _forget_damage_of_what_is_gone(self) -> None:
        present = {
            number
            for listing, files in enumerate(FILES)
            if self._tree(listing).exists()
            for number in files.values()
        } | {number for number in range(len(SIZES)) if self.layout.files.has(sha256(number))}
        self.flipped &= present
        self.hidden &= present
        self.torn = {
            listing
            for listing in self.torn
            if self._tree(listing).exists()
            or self.layout.completion_marker(IDS[listing]).exists()
            or any(held.listing == listing for held in self.runs.values())
        }

    # -- deliveries and runs

    @rule(lineage=lineages, listing=which)
    def deliver(self, lineage: str, listing: int) -> None:
        """What fits beside what live runs hold is delivered; what doesn't is refused, with nothing gone."""
        key, request = self._delivery(lineage, listing)
        fits = self._pinned(listing) <= LIMIT
        output = self._call("deliver", request)
        whole = self._known_whole(listing)
        self._delivered(key, lineage, listing, output)
        mirrored = not self.lost_mirror & set(FILES[listing].values())
        if fits and mirrored and not self.flipped and not self.torn:
            assert "result" in output, output
        certain = all(held.certain for held in self.runs.values())
        if not fits and whole and mirrored and certain:
            assert output["error"]["kind"] in {"StorageError", "InsufficientSpace"}, output
            assert "Used by live runs" in output["error"]["detail"]

    @rule(
        lineage=lineages,
        listing=which,
        fault=st.sampled_from(["die", "die", "full"]),
        effect=st.integers(1, 70),
    )
    def faulty_delivery(self, lineage: str, listing: int, fault: str, effect: int) -> None:
        """It is killed before an effect, or finds the disk full."""
        key, request = self._delivery(lineage, listing)
        self._delivered(key, lineage, listing, self._call("deliver", request, **{fault: effect}))

    @rule(chosen=numbers)
    def begin(self, chosen: int) -> None:
        """A run whose data was delivered finds it, unless a check found wrong bytes in it; from then on it has it mounted."""
        if not self.runs:
            return
        key = sorted(self.runs)[chosen % len(self.runs)]
        held = self.runs[key]
        run = NodeRun(self.layout, key)
        run.create({**run_spec(), "lineage": held.lineage, "cache": str(self.layout.cache)})
        (run.directory / "claim.1").write_text(json.dumps(process_record()))
        held.running = hold_listing(run, IDS[held.listing])
        if not held.running:
            assert not held.certain or held.listing in self.torn
            run.write({"status": DEPLOY_FAILED})
            del self.runs[key]

    @rule(chosen=numbers, lost=st.booleans())
    def end(self, chosen: int, lost: bool) -> None:
        """A run ends, or its supervisor dies and nobody cleans up; either way it holds nothing any more."""
        running = sorted(key for key, held in self.runs.items() if held.running)
        if not running:
            return
        key = running[chosen % len(running)]
        run = NodeRun(self.layout, key)
        if lost:
            dead = {"machine": "other", "boot": "another", "pid": 1, "started": 1}
            (run.directory / "started").write_text(json.dumps(dead))
            (run.directory / "claim.1").write_text(json.dumps(dead))
        else:
            run.write({"status": COMPLETED})
        del self.runs[key]

    @rule()
    def a_day_passes(self) -> None:
        """Deliveries whose runs never started hold nothing any more."""
        for path in self.layout.holds.glob("*/*"):
            age = path.stat().st_mtime - UNSTARTED_SECONDS - 1
            os.utime(path, (age, age))
        self.runs = {key: held for key, held in self.runs.items() if held.running}

    # -- what takes away

    @rule(listing=st.one_of(st.none(), which), die=st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, 13]))
    def evict(self, listing: int | None, die: int) -> None:
        """What live runs hold stays, all else goes; what an interrupted eviction left goes next time."""
        chosen = None if listing is None else [IDS[listing]]
        output = self._call("cache_evict", self._request(listings=chosen, dry_run=False), die=die)
        self._forget_damage_of_what_is_gone()
        if "killed" in output:
            return
        held = {IDS[run.listing] for run in self.runs.values()}
        certainly = {IDS[run.listing] for run in self.runs.values() if run.certain}
        for row in output["result"]["listings"]:
            assert row["outcome"] == "leased" or row["id"] not in certainly, row
            assert row["outcome"] == "evicted" or row["id"] in held, row
        if listing is None and not self.runs:
            assert CacheInventory(self.layout).used() == 0

    @rule(lineage=lineages, die=st.sampled_from([0, 0, 0, 4, 9, 16]))
    def forget(self, lineage: str, die: int) -> None:
        output = self._call("forget", self._request(lineage=lineage), die=die)
        for key, held in list(self.runs.items()):
            if held.lineage == lineage and not held.running:
                if "killed" in output:
                    held.certain = False
                else:
                    del self.runs[key]
        self._forget_damage_of_what_is_gone()

    # -- damage and repair

    @rule(number=contents, hide=st.booleans(), at=numbers)
    def flip(self, number: int, hide: bool, at: int) -> None:
        """A byte changes, with the times of right ones or others."""
        blob = Path(self.layout.files.blob(sha256(number)))
        if not blob.exists() or number in self.flipped:
            return
        times = blob.stat()
        blob.chmod(0o644)
        with blob.open("r+b") as stream:
            at %= SIZES[number]
            stream.seek(at)
            byte = stream.read(1)[0]
            stream.seek(at)
            stream.write(bytes([byte ^ 1]))
        blob.chmod(0o444)
        if hide:
            os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))
        (self.hidden if hide else self.flipped).add(number)

    @rule(number=contents, back=st.booleans())
    def mirror(self, number: int, back: bool) -> None:
        """The mirror loses a content, or has it again."""
        if back:
            self._mirror(number)
            self.lost_mirror.discard(number)
        else:
            for blob in self._mirrored(number):
                blob.unlink(missing_ok=True)
            self.lost_mirror.add(number)

    @rule(die=st.sampled_from([0, 0, 0, 5, 12, 25]))
    def verify(self, die: int) -> None:
        """Every wrong byte is found: what isn't whole afterwards has no seal."""
        output = self._call("cache_verify", self._request(), die=die)
        if "killed" in output:
            self.torn |= self._touched()
            self._forget_damage_of_what_is_gone()
            return
        rows = {row["id"]: row["outcome"] for row in output["result"]["listings"]}
        for listing in (number for number, item in enumerate(IDS) if item in rows):
            whole = rows[IDS[listing]] == "ok"
            assert whole or not self.layout.completion_marker(IDS[listing]).exists()
            self.torn = self.torn - {listing} if whole else self.torn | {listing}
            self.flipped -= set(FILES[listing].values())
            self.hidden -= set(FILES[listing].values())
        self._forget_damage_of_what_is_gone()

    def _touched(self) -> set[int]:
        """Listings of which a verification may have removed something when it was killed."""
        damaged = self.flipped | self.hidden
        return {n for n, files in enumerate(FILES) if damaged & set(files.values())} | self.torn

    # -- both at once

    @rule(
        lineage=lineages,
        listing=which,
        other=st.one_of(which, st.sampled_from(["evict", "verify", "forget"])),
        die=st.sampled_from([0, 0, 10, 20, 40]),
    )
    def both(self, lineage: str, listing: int, other: int | str, die: int) -> None:
        """A delivery, and at the same time another, an eviction, a verification or the other lineage's end."""
        second = LINEAGES[1 - LINEAGES.index(lineage)]
        key, request = self._delivery(lineage, listing)
        other_key = ""
        if isinstance(other, int):
            other_key, other_request = self._delivery(second, other)
            method = "deliver"
        elif other == "forget":
            method, other_request = "forget", self._request(lineage=second)
        else:
            method, other_request = f"cache_{other}", self._request(listings=None, dry_run=False)
        self.zygotes[0].send("deliver", request, die=die)
        self.zygotes[1].send(method, other_request)
        output, other_said = (zygote.answer() for zygote in self.zygotes)
        self._delivered(key, lineage, listing, output)
        if isinstance(other, int):
            self._delivered(other_key, second, other, other_said)
        elif other == "forget":
            self.runs = {
                name: held
                for name, held in self.runs.items()
                if held.running or held.lineage != second
            }
        else:
            assert "result" in other_said, other_said
        if other == "verify":
            rows = other_said["result"]["listings"]
            self.torn |= {
                IDS.index(row["id"]) for row in rows if row["outcome"] in ("corrupt", "evicted")
            }
        self._forget_damage_of_what_is_gone()

    # -- what must hold

    @invariant()
    def what_is_mounted_is_whole(self) -> None:
        for held in self.runs.values():
            if held.running and self._known_whole(held.listing):
                self._check_tree(held.listing)

    @invariant()
    def what_is_sealed_is_whole(self) -> None:
        for listing, item in enumerate(IDS):
            if self.layout.completion_marker(item).exists() and self._known_whole(listing):
                self._check_tree(listing)

    @invariant()
    def the_limit_holds(self) -> None:
        assert CacheInventory(self.layout).used() <= LIMIT

    def _check_tree(self, listing: int) -> None:
        NodeCache.compared += 1
        tree = self._tree(listing)
        result = {
            path.relative_to(tree).as_posix(): path.read_bytes()
            for path in tree.rglob("*")
            if path.is_file()
        }
        assert {name: len(data) for name, data in result.items()} == {
            name: SIZES[number] for name, number in FILES[listing].items()
        }
        assert result == {name: CONTENTS[number] for name, number in FILES[listing].items()}


def test_mounted_trees_are_complete_and_the_limit_holds() -> None:
    examples, before = settings().max_examples // 5, NodeCache.compared
    run_state_machine_as_test(
        NodeCache,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            report_multiple_bugs=False,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
        ),
    )
    assert examples < 10 or NodeCache.compared > before

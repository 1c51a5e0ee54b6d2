"""What is fetched once although several weights, or several files, need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mirrors import MemorySource, impatient
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.model.address import Address
from trainctl.operations.look_shared import shared
from trainctl.weights.metered import Metered
from trainctl.weights.mirror import Reference as OldReference
from trainctl.weights.mirror.fetch import AT_ONCE
from trainctl.weights.mirror.here import HereMirror
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.partial import Arrived

REFERENCE = OldReference("lineage-1", "weights.model", "ann@laptop", "demo")

A, B, C = (Address.parse(f"weights.{name}") for name in "abc")
MIB = 2**20


def test_a_content_comes_with_the_first_that_needs_it() -> None:
    """Of the others each says with which; what has arrived of it is no part of that."""
    known = {
        B: Known((("1" * 64, 4 * MIB, False), ("2" * 64, 5 * MIB, False)), None, {0: Arrived(MIB, MIB)}),
        A: Known((("1" * 64, 4 * MIB, False),), None, {0: Arrived(MIB, MIB)}),
        C: Known((("2" * 64, 5 * MIB, False), ("1" * 64, 4 * MIB, False)), None, {1: Arrived(MIB, MIB)}),
    }  # fmt: skip

    assert shared(known, {}) == {B: {A: 3 * MIB}, C: {A: 3 * MIB, B: 5 * MIB}}


def test_the_same_file_twice_comes_once() -> None:
    """Under two names of one source."""
    assert shared({A: Known((("1" * 64, MIB, False),) * 3, None)}, {}) == {A: {A: 2 * MIB}}


def test_what_is_there_unknown_or_small_comes_with_nothing() -> None:
    """The mirror has it, nobody knows yet what it is, or those who bring it don't see it with each other."""
    rows = (("1" * 64, MIB, True), (None, MIB, False), ("2" * 64, MIB - 1, False))

    assert shared({A: Known(rows, None), B: Known(rows, None)}, {}) == {}


def test_small_files_of_one_source_that_are_the_same_come_once() -> None:
    """As many as are brought together; what has arrived of one isn't to come for the others either."""
    rows = (("1" * 64, 500, False),) * AT_ONCE
    assert shared({A: Known(rows, None)}, {}) == {A: {A: 500 * (AT_ONCE - 1)}}
    assert shared({A: Known((*rows, rows[0]), None)}, {}) == {A: {A: 500 * (AT_ONCE - 1)}}
    arrived = dict.fromkeys(range(3), Arrived(500, 500))
    assert shared({A: Known(rows[:3], None, arrived)}, {}) == {}


@pytest.mark.parametrize("announce", [True, False])
def test_what_is_counted_is_what_comes(tmp_path: Path, announce: bool) -> None:
    """The bytes that a mirror asks upstream for, of files that are the same and of which that is, or isn't, told beforehand."""
    files = {f"{number}.bin": b"the same in each" for number in range(5)}
    upstream = MemorySource({**files, "other": b"another"}, announce=announce)
    resolved = upstream.resolve("s3://bucket/p", None, None)
    mirror, source = HereMirror(tmp_path / "mirror", impatient()), Metered(upstream)
    (known,) = mirror.look([resolved]).known
    mirror.mirror(resolved, source, REFERENCE)

    counted = shared({A: known}, {}).get(A, {}).get(A, 0)
    assert source.read == resolved.size - counted
    assert counted == (4 * 16 if announce else 0)


def test_who_names_the_same_source_brings_nothing_of_it() -> None:
    """Whatever nobody knows of it beforehand; what has arrived, and what comes once by itself, as of one alone."""
    rows = ((None, MIB, False), (None, 5, False), ("1" * 64, 7, False), ("1" * 64, 7, False))
    one = Known(rows, None, {0: Arrived(MIB // 2, MIB)})
    files = (SourceFile("a", MIB, "etag:1"), SourceFile("b", 5, "etag:2"))
    source, other = (ResolvedSource(f"s3://{name}/p", "1", files) for name in ("bucket", "other"))

    found = shared({A: one, B: one, C: one}, {A: source, B: source, C: other})

    assert found == {A: {A: 7}, B: {A: MIB // 2 + 5 + 7, B: 7}, C: {C: 7}}
    whole = Known(tuple((sha256, size, True) for sha256, size, _ in rows), "listing")
    assert shared({A: whole, B: whole}, {A: source, B: source}) == {}

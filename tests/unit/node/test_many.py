"""What a node does with very many things at once: sets of them, work by several threads, reservations."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory import listing_of
from trainctl.base.processes import identity
from trainctl.node.cache import reservations
from trainctl.node.content import sizes
from trainctl.node.content.digests import Digests, each_once
from trainctl.node.system.layout import Layout
from trainctl.node.system.numbers import Numbers
from trainctl.node.system.threads import for_each


def test_numbers_are_a_set() -> None:
    """Also of the smallest and the largest, and of many on one shelf."""
    chance = random.Random(0)
    numbers, expected = Numbers(), set[int]()
    for _ in range(3000):
        number = chance.choice([0, 2**64 - 1, 4096 * chance.randrange(500), chance.getrandbits(64)])
        assert numbers.add(number) == (number not in expected)
        expected.add(number)

    assert all(number in numbers for number in expected)
    assert not any(number + 1 in numbers for number in expected if number + 1 not in expected)


def test_contents_are_a_set_by_any_name() -> None:
    """Whatever lies where contents do; those that come again are left out."""
    names = ["ab" * 32, ".nfs0001", "ab" * 32, "", "cd" * 32, ".nfs0001"]

    assert list(each_once(names)) == ["ab" * 32, ".nfs0001", "", "cd" * 32]
    assert "ab" * 32 in Digests(names)
    assert "ba" * 32 not in Digests(names)


def test_several_threads_do_each_thing_once() -> None:
    """They take one after another from what may have no end in memory."""
    done: list[int] = []

    for_each(done.append, iter(range(1000)), 4)

    assert sorted(done) == list(range(1000))


def test_nothing_is_begun_after_an_error() -> None:
    """It is raised, whichever thread had it."""
    begun: list[int] = []
    failed = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            failed.set()
            raise ValueError(number)
        failed.wait(10)

    with pytest.raises(ValueError, match="3"):
        for_each(work, iter(range(100_000)), 4)

    assert len(begun) < 100_000


def test_an_error_of_who_tells_what_is_next_is_raised() -> None:
    """It ends the work, too."""

    def things() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        for_each(lambda thing: None, things(), 3)


def test_reservations_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No content and no digit is lost where a piece ends; those of dead processes, and what is none, are cleared away."""
    layout, listing = Layout(str(tmp_path)), listing_of(0, 500)
    expected = {file.sha256: file.size for file in listing.contents}
    layout.reservations.mkdir(parents=True)
    layout.locks.mkdir()
    earlier = {"blobs": {"e" * 64: 12345}, "holder": identity()}
    (layout.reservations / "earlier").write_text(json.dumps(earlier))
    for name, text in (("dead", {"blobs": {"d" * 64: 1}, "holder": None}), ("other", [])):
        (layout.reservations / name).write_text(json.dumps(text))

    with reservations.reserved(layout, listing):
        for size in (7, 1000, 2**16):
            monkeypatch.setattr(sizes, "_READ", size)
            found = list(reservations.reservations(layout))
            assert len(found) == 501
            assert dict(found) == {**expected, "e" * 64: 12345}

    assert [path.name for path in layout.reservations.iterdir()] == ["earlier"]

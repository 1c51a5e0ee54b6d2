"""Which peers a node asks for which parts of the weights that several nodes need."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from graphlib import TopologicalSorter

import pytest

from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.node.transfer import fetch_pool
from trainctl.node.transfer.fetch_pool import batches, from_hex, has_bit, to_hex, unit_lengths
from trainctl.node.transfer.peers import PeerSchedule

Held = Sequence[Sequence[bool]]
"""By node, for each part whether the node has it."""


def listing_of(chunks: int, small: int = 0) -> Listing:
    """One file of so many chunks, and so many small ones."""

    def name(number: int) -> str:
        return hashlib.sha256(str(number).encode()).hexdigest()

    large = ListedFile("large", chunks * CHUNK_BYTES, name(-1), tuple(map(name, range(chunks))))
    rest = [ListedFile(f"small-{number}", 1000, name(1000 + number), ()) for number in range(small)]
    return Listing((large, *rest))


def lines(listing: Listing, held: Held) -> list[list[tuple[bool, list[str]]]]:
    """By node, for each part whether it has it, and which peers it would ask."""
    holds = {f"node-{number}": to_hex(row) for number, row in enumerate(held)}
    owners = [PeerSchedule(listing, node, holds) for node in sorted(holds)]
    return [
        [(here, owner.sources(number)) for number, here in enumerate(row)]
        for owner, row in zip(owners, held, strict=True)
    ]


def every_second(nodes: int, parts: int) -> Held:
    return [[node % 2 == 0 and part % 2 == 0 for part in range(parts)] for node in range(nodes)]


def nothing(nodes: int, parts: int) -> Held:
    return [[False] * parts for _ in range(nodes)]


def sends(listing: Listing, held: Held) -> Counter[str]:
    """How many parts each node sends without faults."""
    result = lines(listing, held)
    return Counter(line[0] for row in result for here, line in row if not here and line)


@pytest.mark.parametrize("seed", range(20))
def test_no_nodes_wait_for_each_other(seed: int) -> None:
    """Each part has an order in which every node asks only nodes before it."""
    chance = random.Random(seed)
    listing = listing_of(chance.randrange(2, 9), small=chance.randrange(4))
    parts = len(list(unit_lengths(listing)))
    held = [[chance.random() < 0.4 for _ in range(parts)] for _ in range(chance.randrange(2, 7))]
    rows = lines(listing, held)

    for part in range(parts):
        asked = {f"node-{node}": row[part][1] for node, row in enumerate(rows)}
        order = list(TopologicalSorter(asked).static_order())
        assert set(order) == set(asked)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_with_a_part_are_asked_first(seed: int) -> None:
    """For a part that no node has exactly one node asks the mirror first."""
    chance = random.Random(seed)
    listing, count = listing_of(6, small=3), chance.randrange(2, 7)
    held = [[chance.random() < 0.3 for _ in range(9)] for _ in range(count)]
    rows = lines(listing, held)

    for part in range(9):
        holders = {f"node-{node}" for node in range(count) if held[node][part]}
        begins = [row[part][1][:1] for row in rows if not row[part][0]]
        if holders:
            assert {name for line in begins for name in line} <= holders
            assert all(begins)
        else:
            assert begins.count([]) == 1


@pytest.mark.parametrize(("nodes", "chunks"), [(4, 48), (8, 48), (8, 96)])
@pytest.mark.parametrize("held", [every_second, nothing])
def test_all_send_about_as_much(nodes: int, chunks: int, held: Callable[[int, int], Held]) -> None:
    """At most a chunk for each other node above the mean."""
    listing = listing_of(chunks)
    result = sends(listing, held(nodes, chunks))

    assert max(result.values()) < result.total() / nodes + nodes - 1


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
def test_the_parts_of_a_node_are_a_hexadecimal_number(count: int) -> None:
    """The first part is its lowest bit."""
    chance = random.Random(count)
    present = [chance.random() < 0.5 for _ in range(count)]

    text = to_hex(present)

    assert text == f"{sum(item << number for number, item in enumerate(present)):x}"
    assert [has_bit(from_hex(text, count), number) for number in range(count)] == present
    assert not any(has_bit(from_hex("0", count), number) for number in range(count))
    for wrong in ("-1", "0x1", "g"):
        with pytest.raises(ValueError, match="hex"):
            from_hex(wrong, count)


@pytest.mark.parametrize(
    ("limit", "sizes"), [("_BATCH_MAX_FILES", [4, 4, 1]), ("_BATCH_BYTES", [1, 8])]
)
def test_a_batch_has_so_many_files_and_bytes_at_most(
    monkeypatch: pytest.MonkeyPatch, limit: str, sizes: list[int]
) -> None:
    files = listing_of(1, small=8).files
    monkeypatch.setattr(fetch_pool, limit, 4 if limit == "_BATCH_MAX_FILES" else CHUNK_BYTES)

    result = list(batches(files))

    assert [len(batch) for batch in result] == sizes
    assert [file for batch in result for file in batch] == list(files)

"""What several weights have in common and nobody has mirrored: it is fetched once."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.base.listing import ResolvedSource
from trainctl.model.address import Address
from trainctl.plan.weights import content_of
from trainctl.weights.mirror.fetch import AT_ONCE, LARGE_FROM_BYTES
from trainctl.weights.mirror.known import Known, to_come

Shared = Mapping[Address, int]
"""Bytes of one weights, by the weights with which they come."""


def shared(
    known: Mapping[Address, Known], sources: Mapping[Address, ResolvedSource]
) -> dict[Address, Shared]:
    """Of each weights the bytes that are missing in the mirror and come with weights before it, or with another file of its own.

    All of one that names the same source at the same version: such are mirrored one after another. Else only of what is known to be
    the same and is asked for once: large files of all, and small ones of one weights that come together. Small files of several may
    come twice, as nobody sees a pack before it is whole.
    """
    first: dict[str, Address] = {}
    found: dict[Address, dict[Address, int]] = {}
    whole: dict[str, Address] = {}
    for address, one in sorted(known.items()):
        source = sources.get(address)
        twin = whole.setdefault(content_of(source), address) if source else address
        if twin != address:
            found[address] = _with(twin, address, one)
            continue
        for sha256, left in to_come(one, LARGE_FROM_BYTES):
            if sha256 not in first:
                first[sha256] = address
            else:
                of_mine = found.setdefault(address, {})
                of_mine[first[sha256]] = of_mine.get(first[sha256], 0) + left
        if small := _repeated(one):
            of_mine = found.setdefault(address, {})
            of_mine[address] = of_mine.get(address, 0) + small
    return {address: of_mine for address, of_mine in found.items() if of_mine}


def _with(twin: Address, address: Address, one: Known) -> dict[Address, int]:
    """What would come once by itself still does where the twin isn't in a plan."""
    own = shared({address: one}, {}).get(address, {})
    left = one.size - one.had - own.get(address, 0)
    return {**own, **({twin: left} if left else {})}


def _repeated(one: Known) -> int:
    """The bytes of small files that come with another of the same weights; what is brought together is all that is remembered."""
    seen: set[str] = set()
    count = 0
    for number, (sha256, size, here) in enumerate(() if one.listing else one.files):
        if number % AT_ONCE == 0:
            seen.clear()
        if sha256 is None or here or size >= LARGE_FROM_BYTES:
            continue
        if sha256 in seen:
            left = one.arrived.get(number)
            count += size - left.good if left else size
        seen.add(sha256)
    return count

"""What several weights have in common and nobody has mirrored: it is fetched once."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.model.address import Address
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES
from trainctl.weights.mirror.known import Known, to_come

Shared = Mapping[Address, int]
"""Bytes of one weights, by the weights with which they come."""


def shared(known: Mapping[Address, Known]) -> dict[Address, Shared]:
    """Of each weights the bytes that are missing in the mirror and come with weights before it, or with another file of its own.

    Only of files that are large, and whose content is known: small ones of two that are mirrored at once may come twice, and
    there may be millions.
    """
    first: dict[str, Address] = {}
    found: dict[Address, dict[Address, int]] = {}
    for address, one in sorted(known.items()):
        for sha256, left in to_come(one, LARGE_FROM_BYTES):
            if sha256 not in first:
                first[sha256] = address
            else:
                of_mine = found.setdefault(address, {})
                of_mine[first[sha256]] = of_mine.get(first[sha256], 0) + left
    return dict(found)

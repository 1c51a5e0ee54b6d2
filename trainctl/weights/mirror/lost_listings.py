"""Listings of a mirror's directory that are damaged, or missing though references name them: found, and written anew."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import AbstractSet, Any, Mapping, NamedTuple

from trainctl.base import below
from trainctl.base.listing import ResolvedSource
from trainctl.errors import StorageError
from trainctl.weights.mirror.afresh import Origins
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.listed import listed_anew
from trainctl.weights.mirror.needs import Need, References, references
from trainctl.weights.mirror.relisted import relisted


class Lost(NamedTuple):
    """A listing that is lost: ``what`` in words, the sources whose it is, and what became of it, as ``Outcome`` has it."""

    listing_id: str
    what: str
    sources: tuple[str, ...]
    outcome: str = "wrong"
    detail: str = ""


def lost_listings(layout: Layout, seen: References) -> list[Lost]:
    """Those that are lost, as they are."""
    here, damaged = set(), set()
    for path in layout.listings():
        here.add(path.stem)
        try:
            layout.check_listing(path.stem)
        except StorageError:
            damaged.add(path.stem)
    missing = _named(seen.needs) - here
    if missing:  # one that was collected meanwhile is named no more
        missing &= _named(references(layout).needs)
    return [
        *(Lost(one, "listing changed", _sources(one, seen)) for one in sorted(damaged)),
        *(Lost(one, "listing missing", _sources(one, seen)) for one in sorted(missing)),
    ]


def repaired(
    layout: Layout,
    seen: References,
    lost: Iterable[Lost],
    origins: Origins,
    own: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Lost]:
    """The same, written anew as far as that can be. One that nobody needs goes; where a reference is damaged nobody knows that.

    ``own`` says what the caller's own references do, and more than those that an earlier release wrote.
    """

    def write(resolved: ResolvedSource, _: Mapping[str, Any]) -> bool:
        return listed_anew(layout, resolved, one.listing_id)

    for one in lost:
        users = [need for need in seen.needs if one.listing_id in need.listings]
        if users:
            records = (*(need.record for need in users), *own)
            why = relisted(one.listing_id, records, origins, write, threading.Event())
            yield one._replace(outcome="wrong" if why else "repaired", detail=why or "")
        elif seen.damaged:
            yield one
        else:
            below.remove(layout.root, layout.listing(one.listing_id))
            yield one._replace(outcome="removed")


def _named(found: Iterable[Need]) -> AbstractSet[str]:
    return frozenset().union(*(need.listings for need in found))


def _sources(listing_id: str, seen: References) -> tuple[str, ...]:
    users = (need for need in seen.needs if listing_id in need.listings)
    return tuple(sorted({str(need.record.get("source")) for need in users}))

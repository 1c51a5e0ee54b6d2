"""Whether the weights of new runs find room on their nodes: now, once others have ended, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trainctl.base.units import format_bytes
from trainctl.model.action import Reason
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.values import Change, DeliveryLine, NodeFacts

WAITS = "waits-for-room"
"""The code of the warning that a run will wait, as there is no room for its weights beside those of live runs."""

_ASK_AGAIN = "Ask for the run again once others have ended."
_GOES_ON = "`apply --wait` and `trainctl watch` go on with it once others have ended, as does a later apply."

Lines = Mapping[str, DeliveryLine]
"""What one job needs of one node, by content: what two weights name lies there once."""


def room_of(seen: NodeFacts) -> int:
    """Bytes that weights may still take on a node, as far as it told."""
    return seen.disk_free if seen.room is None else seen.room


def room_problems(
    facts: Mapping[str, NodeFacts], jobs: Iterable[Change], lines: Iterable[DeliveryLine]
) -> Iterator[Diagnostic]:
    """An error for weights that a node can never hold; a warning where that is only for now, or for all jobs together."""
    by_address = {job.address: job for job in jobs}
    needs: dict[str, dict[Address, dict[str, DeliveryLine]]] = {}
    for line in lines:
        if line.node in facts and line.node is not None and line.tiers is not None:
            needs.setdefault(line.node, {}).setdefault(line.job, {})[line.content] = line
    for node, of_jobs in sorted(needs.items()):
        yield from _of_node(facts[node], of_jobs, by_address)


class _Wish(NamedTuple):
    """Bytes: what weights take in the node's cache, and what comes into the mirror meanwhile, if that lies on the same disk."""

    cache: int
    mirror: int = 0


def _of_node(
    seen: NodeFacts, jobs: Mapping[Address, Lines], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    wishes = {job: _wish(seen, own) for job, own in jobs.items()}
    tight = {job: wish for job, wish in wishes.items() if not _fits(seen, wish)}
    for job, wish in sorted(tight.items()):
        has, needs = _has(seen, wish), _needs(seen, wish)
        if not _will_fit(seen, jobs[job]):
            yield error(
                f"{has} and needs {needs}",
                f"Free space there, {_larger(seen, wish)}, or narrow allow_patterns. What no live run needs makes room by itself.",
                address=str(job),
                code="too-little-space",
            )
        elif changes[job].stops is None:  # what its own run has there is free when its turn comes
            asked = changes[job].reason is Reason.BY_REQUEST
            yield warning(
                f"{has} beside what live runs need, and needs {needs}: the job waits",
                f"{_ASK_AGAIN if asked else _GOES_ON} To have both at once, {_larger(seen, wish)}.",
                address=str(job),
                code=WAITS,
            )
    together = _wish(seen, {one: line for own in jobs.values() for one, line in own.items()})
    if not tight and not _fits(seen, together):
        has, needs = _has(seen, together), _needs(seen, together, of="")
        yield warning(
            f"{has} for weights and needs {needs} if all jobs run at once",
            f"It is for {', '.join(sorted(map(str, jobs)))}: what finds no room waits. {_GOES_ON}",
            address=str(min(jobs)),
            code="too-little-space",
        )


def _wish(seen: NodeFacts, lines: Lines) -> _Wish:
    brought = sum(line.tiers.upstream for line in lines.values() if line.tiers)
    takes = sum(_takes(seen, line) for line in lines.values())
    return _Wish(takes, brought if seen.beside_mirror else 0)


def _fits(seen: NodeFacts, wish: _Wish) -> bool:
    return wish.cache <= room_of(seen) and _fits_beside(seen, wish)


def _fits_beside(seen: NodeFacts, wish: _Wish) -> bool:
    """Whether both do, where something comes into a mirror on the same disk."""
    room = seen.beside_mirror
    return room is None or not wish.mirror or sum(wish) <= room[0]


def _has(seen: NodeFacts, wish: _Wish) -> str:
    if wish.cache <= room_of(seen) and seen.beside_mirror:  # it is the disk that is too small
        return f"{seen.id} has {format_bytes(seen.beside_mirror[0])} free"
    limit = "" if seen.limit is None else f" of {format_bytes(seen.limit)}"
    return f"{seen.id} has {format_bytes(room_of(seen))}{limit} free"


def _needs(seen: NodeFacts, wish: _Wish, of: str = " of weights") -> str:
    if _fits_beside(seen, wish):
        return f"{format_bytes(wish.cache)}{of}"
    mirror = f"{format_bytes(wish.mirror)} for the mirror on the same disk"
    return f"{format_bytes(wish.cache)}{of} beside {mirror}"


def _larger(seen: NodeFacts, wish: _Wish) -> str:
    """What gives a node more room."""
    apart = "" if _fits_beside(seen, wish) else " than the mirror's (mirror: {url: …})"
    limited = seen.limit is not None and wish.cache > room_of(seen)
    limit = ", raise cache.node.size" if limited else ""
    return f"put the node cache on a {'larger' if not apart else 'different'} disk{apart}{limit}"


def _takes(seen: NodeFacts, line: DeliveryLine) -> int:
    """Bytes that the weights take of the room: all that no live run has there, as the rest makes room; else what is missing."""
    missing = line.tiers.missing if line.tiers else 0
    return missing if seen.room is None else seen.claims.get(line.weights, missing)


def _will_fit(seen: NodeFacts, needs: Lines) -> bool:
    """Whether a job's weights fit where nothing else is needed."""
    tiers = [line.tiers for line in needs.values() if line.tiers]
    alone, brought = sum(one.total for one in tiers), sum(one.upstream for one in tiers)
    beside = seen.beside_mirror is None or alone + brought <= seen.beside_mirror[1]
    return beside and seen.most is not None and alone <= seen.most

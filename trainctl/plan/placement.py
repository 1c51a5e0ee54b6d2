"""Which nodes of its cluster a run gets, from what was observed of them: the same values give the same nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from trainctl.base.units import parse_size
from trainctl.plan.runs import gpu_count, node_count
from trainctl.plan.values import GpuFacts

_NOMINAL = 0.9


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run asks for: nodes, and GPUs of each (None: all that jobs may use there), of a kind if one is named.

    Also processors and bytes of memory of each, which are shared with other runs; 0 where nobody said.
    """

    nodes: int
    gpus: int | None
    kind: str
    cpus: int = 0
    memory: int = 0

    @classmethod
    def by(cls, attributes: Mapping[str, Any]) -> Wanted:
        """What a job's attributes ask for."""
        compute = attributes.get("compute") or {}
        accelerator = str(compute.get("accelerator") or "")
        gpus = gpu_count(compute) if accelerator else None
        cpus, memory = int(compute.get("cpu_count") or 0), parse_size(compute.get("memory") or 0)
        return cls(node_count(compute), gpus, accelerator.partition(":")[0], cpus, memory)

    def fits(self, cpus: int, memory: int) -> bool:
        """Whether a machine with these is large enough; 0: not known. What is sold as 64Gi has a little less that can be used."""
        enough = not memory or memory >= self.memory * _NOMINAL
        return enough and (not cpus or cpus >= self.cpus)


class Room(IntEnum):
    """When a node has room for a run's weights: now, once other runs have ended, or never."""

    NOW = 0
    LATER = 1
    NEVER = 2

    @classmethod
    def of(cls, missing: int, total: int, room: int | None, most: int | None) -> Room:
        """By the bytes of weights that no live run has there, all their bytes, and what weights may take now and ``most`` (None: not known)."""
        if most is not None and total > most:
            return cls.NEVER
        return cls.LATER if room is not None and missing > room else cls.NOW


@dataclass(frozen=True, slots=True)
class Offer:
    """What one node has for it: GPUs that jobs may use, live runs, and bytes of the wanted weights that are there already;
    and when there is room for them. ``planned``: the plan has the run there.

    ``gpus`` is None where nobody asked the nodes: then none is refused. ``cpus`` and ``memory`` are 0 where they are not known.
    """

    node: str
    gpus: tuple[GpuFacts, ...] | None = ()
    runs: int = 0
    bytes_there: int = 0
    cpus: int = 0
    memory: int = 0
    room: Room = Room.NOW
    planned: bool = False

    def usable(self, kind: str) -> int:
        """How many GPUs of a kind jobs may ever use there."""
        return sum(1 for one in self.gpus or () if one.is_a(kind))

    def free(self, kind: str) -> int:
        """How many of these nobody uses now."""
        return sum(1 for one in self.gpus or () if one.is_a(kind) and one.free)

    def can_hold(self, wanted: Wanted) -> bool:
        """Whether the GPUs that are wanted exist there, and the machine is large enough."""
        seated = self.gpus is None or self.usable(wanted.kind) >= (wanted.gpus or 0)
        return seated and wanted.fits(self.cpus, self.memory)

    def has_room(self, wanted: Wanted) -> bool:
        """Whether they are free now."""
        count = self.usable(wanted.kind) if wanted.gpus is None else wanted.gpus
        return self.free(wanted.kind) >= count


def place(wanted: Wanted, offers: Sequence[Offer]) -> tuple[str, ...]:
    """The nodes of a run by rank: fewer than it wants if there are not as many that could ever hold it.

    Those that never have room for the weights come last. Of the others, in their declared order, those whose GPUs are free come
    first, then those with room now, then those of the plan, then those that have most of the weights' bytes, then those with the
    fewest live runs. Ranks are then numbered in the declared order.
    """
    numbered = [(at, one) for at, one in enumerate(offers) if one.can_hold(wanted)]

    def preference(numbered: tuple[int, Offer]) -> tuple[int, ...]:
        at, one = numbered
        waits = (one.room is Room.NEVER, not one.has_room(wanted), one.room)
        return (*waits, not one.planned, -one.bytes_there, one.runs, at)

    chosen = sorted(numbered, key=preference)[: wanted.nodes]
    return tuple(one.node for _, one in sorted(chosen, key=lambda numbered: numbered[0]))


def with_run(offer: Offer, wanted: Wanted) -> Offer:
    """The offer once such a run has begun there, as far as there is room for it."""
    left = offer.usable(wanted.kind) if wanted.gpus is None else wanted.gpus
    gpus = []
    for one in offer.gpus or ():
        taken = left > 0 and one.free and one.is_a(wanted.kind)
        left -= taken
        gpus.append(replace(one, free=False) if taken else one)
    kept = None if offer.gpus is None else tuple(gpus)
    return replace(offer, gpus=kept, runs=offer.runs + 1)

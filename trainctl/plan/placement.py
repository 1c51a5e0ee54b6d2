"""Which nodes of its cluster a run gets, from what was observed of them: the same values give the same nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from trainctl.model.job_spec import Compute
from trainctl.plan.values import GpuFacts

_NOMINAL = 0.9


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

    def can_hold(self, wanted: Compute) -> bool:
        """Whether the GPUs that are wanted exist there, and the machine is large enough."""
        seated = self.gpus is None or self.usable(wanted.gpu_kind) >= (wanted.gpus or 0)
        return seated and large_enough(wanted, self.cpus, self.memory)

    def has_room(self, wanted: Compute) -> bool:
        """Whether they are free now."""
        count = self.usable(wanted.gpu_kind) if wanted.gpus is None else wanted.gpus
        return self.free(wanted.gpu_kind) >= count


def large_enough(wanted: Compute, cpus: int, memory: int) -> bool:
    """Whether a machine has the processors and memory; 0: not known. A machine sold with 64Gi has a little less that can be used."""
    enough = not memory or memory >= (wanted.memory_bytes or 0) * _NOMINAL
    return enough and (not cpus or cpus >= (wanted.cpu_count or 0))


def place(wanted: Compute, offers: Sequence[Offer]) -> tuple[str, ...]:
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

    chosen = sorted(numbered, key=preference)[: wanted.node_count]
    return tuple(one.node for _, one in sorted(chosen, key=lambda numbered: numbered[0]))


def with_run(offer: Offer, wanted: Compute) -> Offer:
    """The offer once such a run has begun there, as far as there is room for it."""
    left = offer.usable(wanted.gpu_kind) if wanted.gpus is None else wanted.gpus
    gpus = []
    for one in offer.gpus or ():
        taken = left > 0 and one.free and one.is_a(wanted.gpu_kind)
        left -= taken
        gpus.append(replace(one, free=False) if taken else one)
    kept = None if offer.gpus is None else tuple(gpus)
    return replace(offer, gpus=kept, runs=offer.runs + 1)

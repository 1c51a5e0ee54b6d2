"""Which complete checkpoints of a run may go."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

LOOSE = "."


def doomed(
    manifests: Sequence[Mapping[str, Any]],
    keep_last: Optional[int],
    keep_every: Optional[int],
    leased: Collection[Tuple[int, str]] = (),
) -> List[Mapping[str, Any]]:
    """Of the complete checkpoints of a run, oldest first, those that neither rule keeps, rank by rank.

    ``keep_last`` keeps the newest so many (one if only the other rule is given), ``keep_every`` those whose step it
    divides. The newest, the newest that all of these ranks have, what is being read, and loose files always stay. Without rules
    everything does.
    """
    if keep_last is None and keep_every is None:
        return []
    ranks: Dict[int, List[Mapping[str, Any]]] = {}
    for one in manifests:
        if one["name"] != LOOSE:
            ranks.setdefault(int(one["rank"]), []).append(one)
    common = newest_of_all(manifests)
    found: List[Mapping[str, Any]] = []
    for rank, ordered in ranks.items():
        for one in ordered[: -max(1, keep_last or 1)]:
            step = one.get("step")
            divides = keep_every is not None and step is not None and int(step) % keep_every == 0
            if not divides and one["name"] != common and (rank, one["name"]) not in leased:
                found.append(one)
    return found


def newest_of_all(manifests: Sequence[Mapping[str, Any]]) -> Optional[str]:
    """Of the complete checkpoints of a run, oldest first, the name of the newest that each rank has which has any; None if there is none.

    A rank that was killed while it wrote may lack what the others have completed.
    """
    named = [one for one in manifests if one["name"] != LOOSE]
    ranks = {int(one["rank"]) for one in named}
    of_name: Dict[str, Set[int]] = {}
    for one in named:
        of_name.setdefault(one["name"], set()).add(int(one["rank"]))
    return next((one["name"] for one in reversed(named) if of_name[one["name"]] == ranks), None)

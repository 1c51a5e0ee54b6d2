"""Which complete checkpoints of a run may go."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.ranking import contenders, newest_of_all


def doomed(
    manifests: Sequence[Mapping[str, Any]],
    keep_last: Optional[int],
    keep_every: Optional[int],
    leased: Collection[Tuple[int, str]] = (),
) -> List[Mapping[str, Any]]:
    """Of the complete checkpoints of a run those that count and that neither rule keeps, rank by rank.

    ``keep_last`` keeps the newest so many (one if only the other rule is given), ``keep_every`` those whose step it
    divides. The newest, the newest that all of these ranks have, what is being read, and what doesn't count always stay. Without rules
    everything does.
    """
    if keep_last is None and keep_every is None:
        return []
    ranks: Dict[int, List[Mapping[str, Any]]] = {}
    for one in contenders(manifests):
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

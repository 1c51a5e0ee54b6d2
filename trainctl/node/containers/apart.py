"""The processes of a run's container that are a service's children and not ours: docker's. See the house's DESIGN.md, "Metrics"."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from trainctl.base.files import read_json
from trainctl.base.processes import alive, cpu_seconds, descendants, identity
from trainctl.node.containers.engines import DOCKER, call
from trainctl.node.containers.leftovers import LABEL

_SECONDS = 5.0


class Apart(NamedTuple):
    """The living processes, the CPU seconds of all that the run's containers have used, and what the next look has to know."""

    pids: List[int]
    cpu_seconds: float
    record: Optional[Dict[str, Any]]


def look(directory: Path, before: Optional[Mapping[str, Any]]) -> Apart:
    """Look at the container of the run in ``directory``; ``before`` is the record of the look before.

    The service is asked only while no container is known that lives. What one used after the last look at it is not counted.
    """
    earlier = float(before["earlier_seconds"]) if before else 0.0
    first = before["first"] if before and alive(before["first"]) else None
    if before and first is None:
        earlier += float(before["seconds"])
    first = first or _first_process(directory)
    if first is None:
        return Apart([], earlier, _record(None, 0.0, earlier) if earlier else None)
    pids = [first["pid"], *descendants(first["pid"])]
    seconds = cpu_seconds(pids)
    return Apart(pids, earlier + seconds, _record(first, seconds, earlier))


def _record(
    first: Optional[Mapping[str, Any]], seconds: float, earlier_seconds: float
) -> Dict[str, Any]:
    return {"first": first, "seconds": seconds, "earlier_seconds": earlier_seconds}


def _first_process(directory: Path) -> Optional[Dict[str, Any]]:
    """The identity of the container's process 1; None if there is none, or the engine makes them children of ours."""
    made = read_json(directory / "container.json") or {}
    if made.get("engine") != DOCKER:
        return None
    ask = (DOCKER, "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={directory}")
    for container in call(ask, _SECONDS).out.split():
        answer = call((DOCKER, "inspect", "--format", "{{.State.Pid}}", container), _SECONDS)
        if answer.out.strip().isdigit():
            found = identity(int(answer.out))
            if alive(found):
                return found
    return None

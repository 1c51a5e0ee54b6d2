"""Format nodes, and machines that the state doesn't have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.reports import NodeReport, format_run
from trainctl.views.terminal.text import escape, format_timestamp, table

if TYPE_CHECKING:
    from trainctl.resources.clusters import OrphanedMachine


COLUMNS = (
    "cluster", "name", "address", "status", "reachable", "gpus", "gpus_free", "disk_total", "disk_free", "cache_limit",
    "cache_used", "listings", "runs", "gpus_claimed", "gpus_used", "quarantine", "cost", "idle_since",
)  # fmt: skip
_HEADERS = [
    "NODE", "STATE", "GPUS", "CLAIMED", "USED", "FREE", "DISK FREE", "CACHED", "COST", "IDLE", "RUNS",
]  # fmt: skip


def nodes_json(reports: Sequence[NodeReport]) -> dict[str, Any]:
    """Return the JSON of ``nodes``."""
    return {"nodes": [_node_json(report) for report in reports]}


def node_rows(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the CSV rows of the JSON of ``nodes``: counts instead of lists."""
    return [
        {
            **node,
            "gpus": len(node["gpus"]),
            "gpus_free": _free(node),
            "disk_total": node["disk"]["total"],
            "disk_free": node["disk"]["free"],
            "cache_limit": node["cache"]["limit"],
            "cache_used": node["cache"]["used"],
            "listings": [listing["id"] for listing in node["cache"]["listings"]],
            "gpus_claimed": _count(node, "claimed_by"),
            "gpus_used": _count(node, "used_by"),
            "quarantine": (node["quarantine"] or {}).get("reason"),
        }
        for node in form["nodes"]
    ]


def nodes_lines(
    reports: Sequence[NodeReport], width: int | None = None, *, now: float = 0.0
) -> list[str]:
    """Return a table of nodes, and the problems of each."""
    if not reports:
        return ["No nodes."]
    cells = [_cells(report, now) for report in reports]
    cost = _HEADERS.index("COST")
    if any(row[cost] for row in cells):
        cells = [[*row[:cost], row[cost] or "-", *row[cost + 1 :]] for row in cells]
    right = {"CLAIMED", "USED", "FREE", "DISK FREE", "CACHED", "COST", "IDLE"}
    lines = table(_HEADERS, cells, right=right, width=width, shrinks={"GPUS", "RUNS"})
    for report in reports:
        problem = (report.found or {}).get("gpus_problem") or report.why
        if report.usage.quarantine:
            lines += ["", escape(f"{report.id} is quarantined: {report.usage.quarantine}")]
        if problem:
            first, *rest = str(problem).splitlines()
            named = first if first.startswith(report.id) else f"{report.id}: {first}"
            lines += ["", escape(named), *(f"  {escape(line)}" for line in rest)]
        lines += [f"{report.id}: {text}" for text in _shutdown_texts(report)]
    return lines


def _shutdown_texts(report: NodeReport) -> list[str]:
    """Return when a machine ends itself, and the platform's notices."""
    shutdown: Mapping[str, Any] = (report.found or {}).get("idle_shutdown") or {}
    texts = []
    left = shutdown.get("seconds_left")
    if shutdown and left is None:
        texts.append("warning: its watcher doesn't run, so that it doesn't end itself when idle")
    elif left is not None and shutdown["idle_since"] is not None:
        texts.append(f"idle, ends itself in {format_duration(left)}")
    if shutdown.get("taken_back"):
        time = str(format_timestamp(shutdown["taken_back"]))[11:16]
        texts.append(f"the platform takes the machine back at {time} UTC")
    elif shutdown.get("at_risk"):
        texts.append("warning: the platform may take the machine back soon")
    return texts


def _node_json(report: NodeReport) -> dict[str, Any]:
    facts: Mapping[str, Any] = report.found or {}
    cache, usage = facts.get("cache") or {}, report.usage
    shutdown = facts.get("idle_shutdown") or None
    since = format_timestamp(usage.since)
    quarantine = {"reason": usage.quarantine, "since": since, "by": usage.by}
    return {
        **{name: getattr(report, name) for name in ("cluster", "name", "address", "status")},
        "reachable": report.found is not None or report.status == "missing",
        "reason": report.why or facts.get("gpus_problem"),
        "addresses": list(facts.get("addresses") or ()),
        "gpus": [{name: gpu.get(name) for name in _GPU} for gpu in facts.get("gpus") or ()],
        "disk": facts.get("disk") or {"total": None, "free": None},
        "cache": {
            "limit": report.limit,
            "used": cache.get("used"),
            "listings": [
                {
                    **{name: listing[name] for name in _LISTING},
                    "last_used": format_timestamp(listing["last_used"]),
                }
                for listing in cache.get("listings") or ()
            ],
        },
        "runs": [format_run(run) for run in _runs(report)],
        "projects": [run.get("project") for run in _runs(report)],
        "idle_shutdown": shutdown
        and {
            **{name: format_timestamp(shutdown[name]) for name in _SHUTDOWN_TIMES},
            "seconds_left": shutdown["seconds_left"],
        },
        "quarantine": quarantine if usage.quarantine else None,
        "created_at": format_timestamp(usage.created_at),
        "price_per_hour": usage.price_per_hour,
        "cost": None if usage.cost is None else round(usage.cost, 4),
        "idle_since": format_timestamp(usage.idle_since),
    }


_SHUTDOWN_TIMES = ("idle_since", "taken_back", "at_risk")


def _runs(report: NodeReport) -> Sequence[Mapping[str, Any]]:
    return report.runs if report.found is None else report.found.get("runs") or ()


_LISTING = ("id", "source", "bytes", "leased_by", "projects")
_GPU = ("index", "uuid", "name", "memory_mib", "claimed_by", "project", "used_by")


def _count(form: Mapping[str, Any], user: str) -> int:
    return sum(1 for gpu in form["gpus"] if gpu[user])


def _free(form: Mapping[str, Any]) -> int:
    return sum(1 for gpu in form["gpus"] if not gpu["claimed_by"] and not gpu["used_by"])


def _cells(report: NodeReport, now: float) -> list[str]:
    form, usage = _node_json(report), report.usage
    kinds: dict[str, int] = {}
    for gpu in form["gpus"]:
        name = gpu["name"] or "GPU"
        kinds[name] = kinds.get(name, 0) + 1
    free, used = form["disk"]["free"], form["cache"]["used"]
    return [
        f"{form['cluster']}/{form['name']}",
        "quarantined" if usage.quarantine else form["status"],
        ", ".join(f"{count} × {escape(name)}" for name, count in kinds.items()),
        str(_count(form, "claimed_by")) if kinds else "",
        str(_count(form, "used_by")) if kinds else "",
        str(_free(form)) if kinds else "",
        "" if free is None else format_bytes(free),
        "" if used is None else format_bytes(used),
        "" if usage.cost is None else f"{usage.cost:.2f}",
        "" if usage.idle_since is None else format_duration(max(0.0, now - usage.idle_since)),
        ", ".join(escape(format_run(run, report.lineage)) for run in _runs(report)),
    ]


MACHINE_COLUMNS = (
    "provider", "id", "cluster", "node", "lineage", "key", "of_this_state", "state", "type", "zone", "launched_at",
    "price_per_hour", "cost", "ended", "error",
)  # fmt: skip
_MACHINE_HEADERS = ["NODE", "MACHINE", "TYPE", "STATE", "UP", "COST", "LINEAGE"]


def machine_row(orphan: OrphanedMachine) -> dict[str, Any]:
    """Return the JSON of a machine in ``nodes --orphans`` and ``nodes reap``, which is also its CSV row."""
    machine, node = orphan.machine, orphan.machine.node
    form = {
        **asdict(machine),
        **asdict(orphan),
        **{name: getattr(node, name) for name in ("cluster", "key", "price_per_hour")},
        "node": node.name,
        "launched_at": format_timestamp(machine.launched_at),
        "cost": None if orphan.cost is None else round(orphan.cost, 2),
        "error": orphan.error or None,
    }
    return {name: form[name] for name in MACHINE_COLUMNS}


def machines_lines(
    machines: Sequence[OrphanedMachine], now: float, width: int | None = None
) -> list[str]:
    """Return a table of machines and their total cost."""
    if not machines:
        return ["No orphaned machines."]
    rows = []
    for orphan in machines:
        machine, launched = orphan.machine, orphan.machine.launched_at
        words = (
            machine.node.id,
            machine.id,
            machine.type,
            machine.state,
            "" if launched is None else format_duration(max(0.0, now - launched)),
            "" if orphan.cost is None else f"{orphan.cost:.2f}",
            "this state" if orphan.of_this_state else machine.lineage,
        )
        rows.append([escape(word) for word in words])
    lines = table(_MACHINE_HEADERS, rows, right={"UP", "COST"}, width=width)
    hourly = sum(orphan.machine.node.price_per_hour or 0.0 for orphan in machines)
    total = sum(orphan.cost or 0.0 for orphan in machines)
    lines += ["", f"{total:.2f} USD since launch, {hourly:.2f} USD per hour."]
    others = sorted({one.machine.lineage for one in machines if not one.of_this_state})
    if others:
        lines.append("Other states may use machines with another lineage than this state's.")
    return lines


def ended_lines(machines: Sequence[OrphanedMachine]) -> list[str]:
    """Return what became of each machine."""
    lines = []
    for orphan in machines:
        name = f"{orphan.machine.node.id} ({orphan.machine.id})"
        lines.append(escape(f"{name}: {orphan.error}" if orphan.error else f"Ended {name}."))
    return lines

"""The tables of a plan: what weights there are and where, and what each rank gets from where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from trainctl.base.units import format_bytes, format_duration
from trainctl.model.address import Address
from trainctl.plan.values import DeliveryLine, ImageLine, TierFacts, WeightsLine
from trainctl.views.plan.changes import Page
from trainctl.views.terminal.escape import escape
from trainctl.views.terminal.tables import Cells, chosen, fit, table_of
from trainctl.views.terminal.text import shorten

_Line = TypeVar("_Line", DeliveryLine, ImageLine)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_UNKNOWN = "?"
_SHORT = 16
_NAMED = 4
"""So many nodes are named where more are alike."""
_PRESENT = {True: "present", False: "pulled at start", None: _UNKNOWN}
_SENTENCES = {
    "namespace": "Mounted read-only; only the job sees them.",
    "container": "Mounted read-only in the job's container.",
    "link": "Linked into the job's directory: read-only by agreement, nothing enforces it.",
}

_NUMBERS = ("SIZE", "MIRRORED", "TO FETCH", "THROUGH HERE", "TIME")
_WEIGHTS = (
    ("WEIGHTS", "REVISION", "FILES", *_NUMBERS),
    ("WEIGHTS/name", "REVISION", "FILES", *_NUMBERS),
    ("WEIGHTS/name", "REVISION", *_NUMBERS),
    ("WEIGHTS/name", *_NUMBERS),
    ("WEIGHTS/name", "SIZE", "MIRRORED", "TO FETCH", "TIME"),
)
"""Columns, the most that fit. Names are shortened and numbers never, and in JSON are all of them."""
_DELIVERIES = (
    ("JOB", "RANK", "NODE", "WEIGHTS", "FROM", "MOUNT", "TIME"),
    ("JOB", "RANK", "NODE/name", "WEIGHTS", "FROM", "MOUNT", "TIME"),
)
_BELOW_WEIGHTS = (
    ("JOB", "RANK", "NODE/name", "FROM", "MOUNT", "TIME"),
    ("JOB/name", "RANK", "NODE/shortened", "FROM", "MOUNT", "TIME"),
    ("JOB/name", "RANK", "NODE/shortened", "FROM", "MOUNT"),
    ("JOB/name", "RANK", "NODE/shortened", "FROM"),
    ("JOB/name", "RANK", "FROM"),
)
"""Where the others don't fit: weights are headings then."""
_IMAGES = (
    ("JOB", "RANK", "NODE", "IMAGE", "ENGINE", "THERE"),
    ("JOB", "RANK", "NODE/name", "IMAGE/shortened", "ENGINE", "THERE"),
    ("JOB/name", "RANK", "NODE/shortened", "IMAGE/shortened", "ENGINE", "THERE"),
    ("JOB/name", "RANK", "NODE/shortened", "IMAGE/shortened", "THERE"),
)
_NARROWEST = {
    "WEIGHTS/name": 18,
    "JOB/name": 14,
    "NODE/shortened": 12,
    "IMAGE/shortened": 20,
}


def weights_table(lines: Sequence[WeightsLine], page: Page) -> list[str]:
    """A row for each weights: revision, files, size, what the mirror has, what has to come from upstream, what of that through this machine, and how long that takes."""
    columns = {
        "WEIGHTS": [str(line.address) for line in lines],
        "WEIGHTS/name": [line.address.name for line in lines],
        "REVISION": [short_revision(line.revision) for line in lines],
        "FILES": [_UNKNOWN if line.files is None else str(line.files) for line in lines],
        "SIZE": [_bytes(line.bytes) for line in lines],
        "MIRRORED": [_share(line.bytes_mirrored, line.bytes) for line in lines],
        "TO FETCH": [_share(line.bytes_upstream, line.bytes) for line in lines],
        "THROUGH HERE": [_share(line.bytes_through_operator, line.bytes) for line in lines],
        "TIME": [_seconds(line.forecast_seconds) for line in lines],
    }
    for column, numbers in (
        ("THROUGH HERE", [line.bytes_through_operator for line in lines]),
        ("TIME", [line.forecast_seconds for line in lines]),
    ):
        if not any(numbers):
            del columns[column]
    right = frozenset(columns) - {"WEIGHTS", "REVISION"}
    headers = chosen(_WEIGHTS, columns, page.width - 2, _NARROWEST)
    return _rows(headers, columns, page, right)


def deliveries_table(lines: Sequence[DeliveryLine], page: Page) -> list[str]:
    """A row for each rank and weights, below their weights where it is narrow. A column that would say nothing is left out; a mount that all share is one line.

    Jobs of a matrix that get the same share a row.
    """
    lines, jobs = _shared(lines)
    columns = {
        **_who(lines, jobs),
        "WEIGHTS": [str(line.weights) for line in lines],
        "FROM": [origin(line.tiers) for line in lines],
        "MOUNT": [_mount(line.mount) for line in lines],
        "TIME": [_seconds(line.forecast_seconds) for line in lines],
    }
    if all(line.forecast_seconds is None for line in lines):
        del columns["TIME"]
    mounts = {line.mount for line in lines}
    shared = _SENTENCES.get(mounts.pop()) if len(mounts) == 1 else None
    if shared is not None:
        del columns["MOUNT"]
    right = frozenset({"RANK", "TIME"})
    headers = chosen(_DELIVERIES, columns, page.width - 2, _NARROWEST)
    if fit(headers, columns, page.width - 2, _NARROWEST):
        rows = _rows(headers, columns, page, right)
    else:
        headers = chosen(_BELOW_WEIGHTS, columns, page.width - 4, _NARROWEST)
        rows = _below(columns["WEIGHTS"], _rows(headers, columns, page, right, "    "), page)
    return [*rows, *([f"  {shared}"] if shared else []), *_reasons(lines), *_room(lines)]


def _below(names: Sequence[str], rows: Sequence[str], page: Page) -> list[str]:
    """The rows of each name below it, in a line of its own; the first is that of the headers."""
    groups: dict[str, list[str]] = {}
    for name, row in zip(names, rows[1:], strict=True):
        groups.setdefault(name, [f"  {shorten(name, page.width - 2)}"]).append(row)
    return [rows[0], *(line for group in groups.values() for line in group)]


def _who(lines: Sequence[_Line], jobs: Sequence[str]) -> dict[str, Sequence[str]]:
    """Whose each row is, and where; by the last part of nodes' names, if that tells them apart."""
    nodes = [escape(line.node or _UNKNOWN) for line in lines]
    names = [one.rpartition("/")[2] for one in nodes]
    short = names if len(set(names)) == len(set(nodes)) else nodes
    ranks = {"RANK": [str(line.rank) for line in lines]}
    return {
        "JOB": jobs,
        "JOB/name": [one.removeprefix("job.") for one in jobs],
        **(ranks if any(line.rank for line in lines) else {}),
        "NODE": nodes,
        "NODE/name": short,
        "NODE/shortened": short,
    }


def _reasons(lines: Sequence[DeliveryLine]) -> list[str]:
    """Why each path is that one, with the nodes that it is so of where it isn't so of all."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        nodes.setdefault((line.path, line.why), set()).add(line.node or _UNKNOWN)
    return sorted(
        f"  {path}{_of(there) if len(nodes) > 1 else ''}: {escape(why)}."
        for (path, why), there in nodes.items()
        if why
    )


def _of(nodes: set[str]) -> str:
    first = sorted(nodes)[:_NAMED]
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f" ({escape(', '.join(first))}{more})"


def _room(lines: Sequence[DeliveryLine]) -> list[str]:
    """What each node gets of what it has room for; of many those that it is scarcest on."""
    gets: dict[str, dict[str, int]] = {}
    rooms: dict[str, int] = {}
    for line in lines:
        if line.node is not None and line.tiers is not None and line.room is not None:
            gets.setdefault(line.node, {})[line.content] = line.tiers.missing
            rooms[line.node] = line.room
    sizes = {node: sum(one.values()) for node, one in gets.items() if any(one.values())}
    scarcest = sorted(sizes, key=lambda node: (rooms[node] - sizes[node], node))
    told = [
        f"  {escape(node)} gets {format_bytes(sizes[node])}, and has room for {format_bytes(rooms[node])}."
        for node in scarcest[:_NAMED]
    ]
    more = len(scarcest) - _NAMED
    return [*told, *([f"  {more} more nodes have more room."] if more > 0 else [])]


def _shared(lines: Sequence[_Line]) -> tuple[list[_Line], list[str]]:
    """One of the lines that differ by the job of a matrix only, and whose they are."""
    alike: dict[tuple[Address, _Line], list[_Line]] = {}
    for line in lines:
        alike.setdefault((line.job.group, replace(line, job=line.job.group)), []).append(line)
    jobs = [
        str(ones[0].job) if len(ones) == 1 else f"{group} ({len(ones)})"
        for (group, _), ones in alike.items()
    ]
    return [ones[0] for ones in alike.values()], jobs


def images_table(lines: Sequence[ImageLine], page: Page) -> list[str]:
    """A row for each rank that runs in a container. A tag that is there is still asked for when the run starts."""
    lines, jobs = _shared(lines)
    images = [escape(line.image) for line in lines]
    columns = {
        **_who(lines, jobs),
        "IMAGE": images,
        "IMAGE/shortened": images,
        "ENGINE": [line.engine or _UNKNOWN for line in lines],
        "THERE": [_PRESENT[line.present] for line in lines],
    }
    headers = chosen(_IMAGES, columns, page.width - 2, _NARROWEST)
    return _rows(headers, columns, page, frozenset({"RANK"}))


def _rows(
    headers: Sequence[str], columns: Cells, page: Page, right: frozenset[str], indent: str = "  "
) -> list[str]:
    return table_of(
        headers, columns, page.width, _NARROWEST, right=right, style=page.style, indent=indent
    )


def origin(tiers: TierFacts | None) -> str:
    """Where the bytes are now, the nearest first: ``node 3.0 MB, upstream 1.4 GB``."""
    if tiers is None:
        return _UNKNOWN
    parts = (
        ("node", tiers.node),
        ("cluster", tiers.cluster),
        ("mirror", tiers.mirror),
        ("upstream", tiers.upstream),
    )
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count) or "-"


def short_revision(revision: str | None) -> str:
    """A revision in a few characters: twelve of a commit, the start of anything else."""
    if revision is None:
        return _UNKNOWN
    if _COMMIT.fullmatch(revision):
        return revision[:12]
    text = escape(revision.removeprefix("sha256:"))
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def _bytes(count: int | None) -> str:
    return _UNKNOWN if count is None else format_bytes(count)


def _share(count: int | None, whole: int | None) -> str:
    if count is not None and count == 0:
        return "-"
    return "all" if count is not None and count == whole else _bytes(count)


def _mount(mount: str) -> str:
    return {"": _UNKNOWN, "link": "link (advisory)"}.get(mount, mount)


def _seconds(seconds: float | None) -> str:
    """How long everything takes; ``-`` where nothing moves."""
    if seconds is None:
        return _UNKNOWN
    return format_duration(seconds) if seconds else "-"

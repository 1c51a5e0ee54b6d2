"""What a run uses: a table of the present, and its history as JSON, CSV and small curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from trainctl.base.units import format_bytes, format_duration
from trainctl.model.address import Address
from trainctl.model.reports import (
    VOLUMES,
    GpuMetrics,
    HostMetrics,
    RankSample,
    UnreachableNode,
    VolumeMetrics,
)
from trainctl.model.run import RunRecord
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import Style, format_timestamp, pad, unreachable_json

N = TypeVar("N", int, float)
_WARN, _ALARM = 0.7, 0.9
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 60
_TITLES = {"ephemeral_storage": "DISK", "checkpoints": "CHECKPOINTS", "cache": "CACHE"}


def latest_samples(samples: Iterable[RankSample]) -> list[RankSample]:
    """The last sample of each rank."""
    found = {sample.rank: sample for sample in samples}
    return [found[rank] for rank in sorted(found)]


def peak_samples(samples: Iterable[RankSample]) -> list[RankSample]:
    """For each rank one sample with the most that it used of everything, and the rest as it was last."""
    found: dict[int, RankSample] = {}
    for sample in samples:
        found[sample.rank] = _peak_sample(found.get(sample.rank, sample), sample)
    return [found[rank] for rank in sorted(found)]


def metrics_lines(
    address: Address,
    run: RunRecord,
    samples: Sequence[RankSample],
    style: Style,
    now: float,
    width: int | None = None,
) -> list[str]:
    """The newest look at each rank, of an ended run the most it used. What is nearly full is yellow, then red.

    A GPU that works hard is no reason for colour: it is what one wants.
    """
    head = f"{address}  run {run.number} ({run.id})  {run.status.words}"
    if not samples:
        return [head, "  No samples yet." if run.status.live else "  No samples."]
    if run.status.live:
        last = latest_samples(samples)
        age = max(0.0, now - max(one.time for one in last))
        lines = [f"{head}, {format_duration(age)} ago"]
    else:
        last = peak_samples(samples)
        lines = [f"{head}, peak usage"]
    gpus = _gpu_lines(last, style, width)
    lines += [*_machine_lines(last, style, width), *(["", *gpus] if gpus else [])]
    return [*lines, *(f"  rank {one.rank}: {escape(one.problem)}" for one in last if one.problem)]


def sample_json(one: RankSample) -> dict[str, Any]:
    """One sample under the names that the hosted service uses where it has one."""
    volumes = {name: asdict(one.volumes[name]) if name in one.volumes else None for name in VOLUMES}
    gpus = one.gpus
    return {
        "time": format_timestamp(one.time),
        "rank": one.rank,
        "node": one.node,
        "cpu_usage": one.cpu_usage,
        "cpu_memory_usage_bytes": one.cpu_memory_usage_bytes,
        "processes": one.processes,
        "gpu_names": {number: gpu.name for number, gpu in gpus.items()},
        "gpu_utilization": {number: gpu.utilization for number, gpu in gpus.items()},
        "gpu_memory_usage_bytes": {number: gpu.memory_usage_bytes for number, gpu in gpus.items()},
        "gpu_memory_total_bytes": {number: gpu.memory_total_bytes for number, gpu in gpus.items()},
        **volumes,
        "host": asdict(one.host),
        "problem": one.problem,
    }


def metrics_json(
    address: Address,
    run: RunRecord,
    samples: Sequence[RankSample],
    unreachable: Sequence[UnreachableNode] = (),
) -> dict[str, Any]:
    """What ``metrics --format json`` prints: the history of all ranks, the oldest sample first, but for those of nodes that were ``unreachable``."""
    return {
        "address": str(address),
        "run": run.id,
        "number": run.number,
        "status": run.status.value,
        "samples": [sample_json(sample) for sample in samples],
        "unreachable": unreachable_json(unreachable),
    }


def metrics_csv(samples: Sequence[RankSample]) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Columns for as many GPUs as a sample has, and a row for each sample."""
    numbers = sorted(
        {number for sample in samples for number in sample.gpus}, key=lambda n: (len(n), n)
    )
    columns = [
        *("time", "rank", "node", "cpu_usage", "cpu_memory_usage_bytes"),
        *(f"{name}_{part}" for name in VOLUMES for part in ("usage_bytes", "utilization")),
        *("host_cpu_usage", "host_memory_available_bytes"),
        *(f"gpu{n}_{part}" for n in numbers for part in ("utilization", "memory_usage_bytes")),
    ]
    return columns, [_csv_row(sample) for sample in samples]


def _csv_row(one: RankSample) -> dict[str, Any]:
    parts: dict[str, VolumeMetrics | HostMetrics | GpuMetrics] = {**one.volumes, "host": one.host}
    parts |= {f"gpu{number}": gpu for number, gpu in one.gpus.items()}
    row = sample_json(one)
    for name, part in parts.items():
        row |= {f"{name}_{key}": value for key, value in asdict(part).items()}
    return row


def plot_lines(samples: Sequence[RankSample]) -> list[str]:
    """A small curve for each quantity of each rank, all over the same time; each is as high as its largest value."""
    if not samples:
        return []
    begin, end = samples[0].time, samples[-1].time
    lines = [
        f"  {(format_timestamp(begin) or '')[:19]}Z to {(format_timestamp(end) or '')[11:19]}Z"
    ]
    for rank in sorted({sample.rank for sample in samples}):
        own = [sample for sample in samples if sample.rank == rank]
        rows = [row for row in _curves(own) if any(value is not None for value in row[1])]
        width = max(len(name) for name, _, _ in rows)
        lines += [f"  rank {rank}"] if rank or len({sample.rank for sample in samples}) > 1 else []
        for name, values, show in rows:
            points = [(o.time, v) for o, v in zip(own, values, strict=True) if v is not None]
            top = max(value for _, value in points)
            curve = _curve(points, begin, end, top)
            lines.append(f"  {pad(name, width)}  {curve}  up to {show(top)}")
    return lines


Values = list[float | None]


def _curves(own: Sequence[RankSample]) -> list[tuple[str, Values, Callable[[float], str]]]:
    rows: list[tuple[str, Values, Callable[[float], str]]] = [
        ("cpu", [one.cpu_usage for one in own], lambda v: f"{v:.1f} cores"),
        ("memory", [one.cpu_memory_usage_bytes for one in own], format_bytes),
    ]
    for number in sorted({number for one in own for number in one.gpus}):
        gpus = [one.gpus.get(number) for one in own]
        rows.append((f"gpu {number}", [g.utilization if g else None for g in gpus], _percent))
        used: Values = [g.memory_usage_bytes if g else None for g in gpus]
        rows.append((f"gpu {number} memory", used, format_bytes))
    disk: Values = [
        one.volumes.get("ephemeral_storage", VolumeMetrics()).usage_bytes for one in own
    ]
    rows.append(("disk", disk, format_bytes))
    return rows


def _curve(points: Sequence[tuple[float, float]], begin: float, end: float, top: float) -> str:
    """The largest value in each of as many equal times; a space where there is none."""
    cells: list[float | None] = [None] * _CURVE
    for when, value in points:
        at = min(_CURVE - 1, int((when - begin) / max(end - begin, 1e-9) * _CURVE))
        cells[at] = max(value, cells[at] or 0.0)
    most = len(_BLOCKS) - 1
    return "".join(
        " " if cell is None else _BLOCKS[round(cell / top * most) if top else 0] for cell in cells
    )


def _peak_sample(known: RankSample, one: RankSample) -> RankSample:
    volumes = {
        name: VolumeMetrics(
            _larger(volume.usage_bytes, known.volumes.get(name, volume).usage_bytes),
            volume.utilization,
            volume.free_bytes,
        )
        for name, volume in one.volumes.items()
    }
    gpus = {
        number: GpuMetrics(
            gpu.name,
            _larger(gpu.utilization, known.gpus.get(number, gpu).utilization),
            _larger(gpu.memory_usage_bytes, known.gpus.get(number, gpu).memory_usage_bytes),
            gpu.memory_total_bytes,
        )
        for number, gpu in {**known.gpus, **one.gpus}.items()
    }
    return replace(
        one,
        cpu_usage=_larger(known.cpu_usage, one.cpu_usage),
        cpu_memory_usage_bytes=max(known.cpu_memory_usage_bytes, one.cpu_memory_usage_bytes),
        gpus=gpus,
        volumes=volumes,
    )


def _larger(one: N | None, other: N | None) -> N | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _machine_lines(last: Sequence[RankSample], style: Style, width: int | None) -> list[str]:
    shown = [name for name in VOLUMES if any(name in one.volumes for one in last)]
    headers = ["RANK", "NODE", "CPU", "MEMORY", "HOST MEMORY", *(_TITLES[name] for name in shown)]
    rows = []
    for one in last:
        host = one.host
        cpu = "" if one.cpu_usage is None else f"{one.cpu_usage:.1f} of {host.cpu_count} cores"
        filled = f"{_percent(host.memory_utilization)} of {format_bytes(host.memory_total_bytes)}"
        rows.append(
            [
                str(one.rank),
                one.node,
                cpu,
                format_bytes(one.cpu_memory_usage_bytes),
                filled,
                *(_volume_text(one, name) for name in shown),
            ]
        )
    full = [
        {
            "HOST MEMORY": one.host.memory_utilization,
            **{_TITLES[name]: one.volumes.get(name, VolumeMetrics()).utilization for name in shown},
        }
        for one in last
    ]
    return _colored_table(headers, rows, full, style, width)


def _gpu_lines(last: Sequence[RankSample], style: Style, width: int | None) -> list[str]:
    rows, full = [], []
    for one in last:
        for number, gpu in one.gpus.items():
            used, total = gpu.memory_usage_bytes, gpu.memory_total_bytes
            memory = "" if used is None else format_bytes(used)
            memory += f" of {format_bytes(total)}" if memory and total else ""
            rows.append(
                [str(one.rank), number, escape(gpu.name), _percent(gpu.utilization), memory]
            )
            full.append({"GPU MEMORY": used / total if used is not None and total else None})
    if not rows:
        return []
    headers = ["RANK", "GPU", "NAME", "BUSY", "GPU MEMORY"]
    return _colored_table(headers, rows, full, style, width)


def _load_colour(share: float | None) -> str | None:
    if share is None or share <= _WARN:
        return None
    return "red" if share > _ALARM else "yellow"


def _volume_text(one: RankSample, name: str) -> str:
    """What is in use there, and how full the disk is where that isn't the one of the working directory."""
    volume, first = (
        one.volumes.get(name, VolumeMetrics()),
        one.volumes.get(VOLUMES[0], VolumeMetrics()),
    )
    parts = [] if volume.usage_bytes is None else [format_bytes(volume.usage_bytes)]
    if volume.utilization is not None and (
        volume is first or volume.utilization != first.utilization
    ):
        parts.append(f"{_percent(volume.utilization)} full")
    return ", ".join(parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"


def _colored_table(
    headers: list[str],
    rows: list[list[str]],
    full: Sequence[Mapping[str, float | None]],
    style: Style,
    width: int | None,
) -> list[str]:
    """A table, cells coloured by how full each row's columns are."""

    def paint(row: int, header: str, text: str) -> str:
        colour = _load_colour(full[row].get(header))
        return style(text, colour) if colour else text

    shrinks = frozenset({"NODE", "NAME"})
    return table(headers, rows, style=style, indent="  ", width=width, shrinks=shrinks, paint=paint)

"""Format resource usage: a table of the latest samples, plots, JSON, CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from trainctl.base.lazy_dataclass import asdict, replace
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.address import Address
from trainctl.model.reports import (
    VOLUMES,
    GpuMetrics,
    RankSample,
    UnreachableNode,
    VolumeMetrics,
)
from trainctl.model.run import RunRecord
from trainctl.views.runs.status import progress_text
from trainctl.views.terminal.text import (
    Style,
    display_width,
    escape,
    format_timestamp,
    pad,
    table,
    unreachable_json,
)

T = TypeVar("T", RankSample, VolumeMetrics, GpuMetrics)
_WARN, _ALARM = 0.7, 0.9
_TITLES = {"ephemeral_storage": "DISK", "checkpoints": "CHECKPOINTS", "cache": "CACHE"}


def latest_samples(samples: Iterable[RankSample]) -> list[RankSample]:
    """Return the last sample of each rank."""
    by_rank = {sample.rank: sample for sample in samples}
    return [by_rank[rank] for rank in sorted(by_rank)]


def peak_samples(samples: Iterable[RankSample]) -> list[RankSample]:
    """Return a sample with the maximum of each quantity, by rank."""
    by_rank: dict[int, RankSample] = {}
    for sample in samples:
        peak = by_rank.get(sample.rank, sample)
        volumes = {
            name: _peak(volume, peak.volumes.get(name, volume), "usage_bytes")
            for name, volume in sample.volumes.items()
        }
        gpus = {
            number: _peak(gpu, peak.gpus.get(number, gpu), "utilization", "memory_usage_bytes")
            for number, gpu in {**peak.gpus, **sample.gpus}.items()
        }
        peak = _peak(sample, peak, "cpu_usage", "cpu_memory_usage_bytes")
        by_rank[sample.rank] = replace(peak, gpus=gpus, volumes=volumes)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _peak(now: T, peak: T, *names: str) -> T:
    """Return the first with the larger of both values of each name; None is unknown."""
    larger: dict[str, Any] = {}
    for name in names:
        known = (value for value in (getattr(now, name), getattr(peak, name)) if value is not None)
        larger[name] = max(known, default=None)
    return replace(now, **larger)


def metrics_lines(
    address: Address,
    run: RunRecord,
    samples: Sequence[RankSample],
    style: Style,
    now: float,
    width: int | None = None,
) -> list[str]:
    """Return a table of the latest samples, or of the peaks of an ended run.

    Memory and volumes that are nearly full are yellow or red; GPU utilization is not coloured.
    """
    head = f"{address}  run {run.number} ({run.id})  {run.status.words}"
    if not samples:
        return [head, "  No samples yet." if run.status.live else "  No samples."]
    if run.status.live:
        last = latest_samples(samples)
        age = max(0.0, now - max(sample.time for sample in last))
        lines = [f"{head}, {format_duration(age)} ago"]
    else:
        last = peak_samples(samples)
        lines = [f"{head}, peak usage"]
    gpus = _gpu_lines(last, style, width)
    lines += [*_machine_lines(last, style, width), *(["", *gpus] if gpus else [])]
    reported = next(
        (sample.progress for sample in latest_samples(samples) if sample.progress), None
    )
    if reported:
        left = reported["remaining_seconds"] if run.status.live else None
        lines.insert(1, f"  {progress_text({**reported, 'remaining_seconds': left})}")
    return [
        *lines,
        *(f"  rank {sample.rank}: {escape(sample.problem)}" for sample in last if sample.problem),
    ]


_PLAIN = ("rank", "node", "cpu_usage", "cpu_memory_usage_bytes", "processes")
_GPU_PARTS = ("utilization", "memory_usage_bytes", "memory_total_bytes")
_GPU = {"gpu_names": "name", **{f"gpu_{part}": part for part in _GPU_PARTS}}


def sample_json(sample: RankSample) -> dict[str, Any]:
    """Return the JSON of a sample, with the hosted service's names."""
    volumes = {
        name: asdict(sample.volumes[name]) if name in sample.volumes else None for name in VOLUMES
    }
    return {
        "time": format_timestamp(sample.time),
        **{name: getattr(sample, name) for name in _PLAIN},
        **{
            name: {number: getattr(gpu, part) for number, gpu in sample.gpus.items()}
            for name, part in _GPU.items()
        },
        **volumes,
        "host": asdict(sample.host),
        "problem": sample.problem,
        "step": (sample.progress or {}).get("step"),
        "loss": (sample.progress or {}).get("loss"),
    }


def metrics_json(
    address: Address,
    run: RunRecord,
    samples: Sequence[RankSample],
    unreachable: Sequence[UnreachableNode] = (),
) -> dict[str, Any]:
    """Return the JSON of ``metrics``: all samples, oldest first."""
    return {
        "address": str(address),
        "run": run.id,
        "number": run.number,
        "status": run.status.value,
        "samples": [sample_json(sample) for sample in samples],
        "unreachable": unreachable_json(unreachable),
    }


def metrics_csv(samples: Sequence[RankSample]) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Return the columns and rows of ``metrics --format csv``."""
    numbers = sorted(
        {number for sample in samples for number in sample.gpus}, key=lambda n: (len(n), n)
    )
    columns = [
        *("time", "rank", "node", "step", "loss", "cpu_usage", "cpu_memory_usage_bytes"),
        *(f"{name}_{part}" for name in VOLUMES for part in ("usage_bytes", "utilization")),
        *("host_cpu_usage", "host_memory_available_bytes"),
        *(f"gpu{n}_{part}" for n in numbers for part in ("utilization", "memory_usage_bytes")),
    ]
    rows = []
    for sample in samples:
        row = sample_json(sample)
        for name in (*VOLUMES, "host"):
            row |= {f"{name}_{key}": value for key, value in (row[name] or {}).items()}
        for number, gpu in sample.gpus.items():
            row |= {f"gpu{number}_{key}": value for key, value in asdict(gpu).items()}
        rows.append(row)
    return columns, rows


def _machine_lines(last: Sequence[RankSample], style: Style, width: int | None) -> list[str]:
    shown = [name for name in VOLUMES if any(name in sample.volumes for sample in last)]
    headers = ["RANK", "NODE", "CPU", "MEMORY", "HOST MEMORY", *(_TITLES[name] for name in shown)]
    rows, shares = [], []
    for sample in last:
        host, cpu = sample.host, sample.cpu_usage
        filled = f"{_percent(host.memory_utilization)} of {format_bytes(host.memory_total_bytes)}"
        volumes = {name: sample.volumes.get(name, VolumeMetrics()) for name in VOLUMES}
        rows.append(
            [
                str(sample.rank),
                sample.node,
                "" if cpu is None else f"{cpu:.1f} of {host.cpu_count} cores",
                format_bytes(sample.cpu_memory_usage_bytes),
                filled,
                *(_volume_text(volumes[name], volumes[VOLUMES[0]]) for name in shown),
            ]
        )
        full = {_TITLES[name]: volumes[name].utilization for name in shown}
        shares.append({"HOST MEMORY": host.memory_utilization, **full})
    return _colored_table(headers, rows, shares, style, width)


def _gpu_lines(last: Sequence[RankSample], style: Style, width: int | None) -> list[str]:
    rows, shares = [], []
    for sample in last:
        for number, gpu in sample.gpus.items():
            used, total = gpu.memory_usage_bytes, gpu.memory_total_bytes
            memory = "" if used is None else format_bytes(used)
            memory += f" of {format_bytes(total)}" if memory and total else ""
            rows.append(
                [str(sample.rank), number, escape(gpu.name), _percent(gpu.utilization), memory]
            )
            shares.append({"GPU MEMORY": used / total if used is not None and total else None})
    if not rows:
        return []
    headers = ["RANK", "GPU", "NAME", "BUSY", "GPU MEMORY"]
    return _colored_table(headers, rows, shares, style, width)


def _volume_text(volume: VolumeMetrics, first: VolumeMetrics) -> str:
    """Format usage, and utilization if it differs from that of the first volume."""
    full = volume.utilization
    parts = [] if volume.usage_bytes is None else [format_bytes(volume.usage_bytes)]
    if full is not None and (volume is first or full != first.utilization):
        parts.append(f"{_percent(full)} full")
    return ", ".join(parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"


def _colored_table(
    headers: list[str],
    rows: list[list[str]],
    shares: Sequence[Mapping[str, float | None]],
    style: Style,
    width: int | None,
) -> list[str]:
    """Return a table with cells coloured by utilization."""

    def paint(row: int, header: str, text: str) -> str:
        share = shares[row].get(header)
        if share is None or share <= _WARN:
            return text
        return style(text, "red" if share > _ALARM else "yellow")

    shrinks = {"NODE", "NAME"}
    return table(headers, rows, style=style, indent="  ", width=width, shrinks=shrinks, paint=paint)


_LEVELS = "▁▂▃▄▅▆▇█"


def plot_lines(series: Mapping[str, Mapping[str, Sequence[float]]], width: int | None) -> list[str]:
    """Return a line for each series below the title of its group: a plot, its range and its last value."""
    longest = max((display_width(name) for group in series.values() for name in group), default=0)
    columns = max(10, min(width or 80, 120) - longest - 36)
    lines: list[str] = []
    for title, group in series.items():
        rows = {name: _plot(values, columns) for name, values in group.items() if values}
        lines += [
            escape(title),
            *(f"  {pad(escape(name), longest)} {row}" for name, row in rows.items()),
        ]
    return lines


def usage_of(sample: RankSample) -> Iterator[tuple[str, str, float | None]]:
    """Yield each quantity with the name of its rank or GPU, and its value."""
    rank = f"rank {sample.rank}"
    yield "CPU (cores)", rank, sample.cpu_usage
    yield "Memory (GB)", rank, sample.cpu_memory_usage_bytes / 1e9
    for number, gpu in sample.gpus.items():
        name, used = f"{rank}, GPU {number}", gpu.memory_usage_bytes
        yield "GPU (%)", name, None if gpu.utilization is None else gpu.utilization * 100
        yield "GPU memory (GB)", name, None if used is None else used / 1e9


def usage_series(samples: Iterable[RankSample]) -> dict[str, dict[str, list[float]]]:
    """Return the usage over time, by quantity and rank or GPU."""
    series: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        step = (sample.progress or {}).get("step")
        for title, name, value in (("step", f"rank {sample.rank}", step), *usage_of(sample)):
            if value is not None:
                series.setdefault(title, {}).setdefault(name, []).append(value)
    return series


def _plot(values: Sequence[float], columns: int) -> str:
    """Format ``▁▃█▅ 1.2 to 3.4, last 2``; each column is the mean of its values."""
    size = max(1, math.ceil(len(values) / columns))
    groups = [values[index : index + size] for index in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    drawn = "".join(_LEVELS[round((mean - low) * scale)] for mean in means)
    return f"{drawn}  {min(values):.4g} to {max(values):.4g}, last {values[-1]:.4g}"

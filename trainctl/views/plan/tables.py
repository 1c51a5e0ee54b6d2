"""Format the verdict of a plan, and its tables: weights, deliveries, images and offers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from trainctl.base.lazy_dataclass import asdict, replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.reports import RunForecast
from trainctl.model.run import RunRecord
from trainctl.model.trust import PolicyResult, PolicyStatus
from trainctl.plan.values import DeliveryRow, ImageRow, Plan, TierFacts, WeightsRow
from trainctl.views.plan.changes import PageStyle, format_path, headline
from trainctl.views.terminal.text import escape, pluralize, table

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import Offer


def verdict(plan: Plan) -> str:
    """Return runs, GPU hours, cost, bytes from upstream, policies and digest; empty without changes."""
    stops = sum(change.stops is not None for change in plan.acting)
    reused = sum(change.reuses is not None for change in plan.acting)
    results = plan.policy_results
    waived = sum(result.status is PolicyStatus.WAIVED for result in results)
    policies = f"policies pass{f', {waived} waived' if waived else ''}" if results else ""
    if failing := sum(result.forbids for result in results):
        policies = pluralize(failing, "policy fails", "policies fail")
    facts = (
        pluralize(len(plan.runs), "new run") if plan.runs else "",
        f"stops {pluralize(stops, 'live run')}" if stops else "",
        f"reuses {pluralize(reused, 'run')}" if reused else "",
        _gpu_hours(list(plan.runs.values())),
        _cost(plan),
        _upstream(plan),
        policies,
        f"digest {plan.digest.removeprefix('sha256:')[:12]}",
    )
    text = ", ".join(filter(None, facts))
    return f"{text[:1].upper()}{text[1:]}." if plan.has_changes else ""


def _gpu_hours(runs: Sequence[RunForecast]) -> str:
    runs = [run for run in runs if run.gpus != 0]
    known = [run for run in runs if run.gpus and run.seconds]
    capped = [run.gpu_hours(run.max_seconds) for run in runs if run.gpus and run.max_seconds]
    if not runs:
        return ""
    least, most = (sum(run.gpu_hours(of(run.seconds)) for run in known) for of in (min, max))
    text = (
        f"{_range(least, most, '.1f')} GPU hours by earlier runs" if known else "GPU hours unknown"
    )
    part = f" of {len(known)} of {len(runs)} jobs" if 0 < len(known) < len(runs) else ""
    limit = f" (at most {sum(capped):.1f} by max_duration)" if len(capped) == len(runs) else ""
    return f"{text}{part}{limit}"


def _range(least: float, most: float, form: str) -> str:
    return " to ".join(dict.fromkeys((f"{least:{form}}", f"{most:{form}}")))


def _cost(plan: Plan) -> str:
    hourly, priced = f"{plan.hourly_cost:.2f} USD per hour", plan.runs.values()
    if not plan.hourly_cost or not all(run.seconds for run in priced):
        return hourly if plan.hourly_cost else ""
    least, most = (
        sum(run.hourly_cost * of(run.seconds) / 3600 for run in priced) for of in (min, max)
    )
    return f"{_range(least, most, '.2f')} USD ({hourly})"


def used_weights(plan: Plan) -> list[WeightsRow]:
    """Return the rows of weights that the plan changes or delivers."""
    used = {change.address for change in plan.acting if change.action is not Action.NOOP}
    used |= {line.weights for line in plan.deliveries}
    return [row for row in plan.weights if row.address in used]


def _upstream(plan: Plan) -> str:
    sizes = [row.bytes_upstream for row in used_weights(plan)]
    known = format_bytes(sum(filter(None, sizes)))
    if None in sizes:
        return f"at least {known} from upstream"
    return f"{known if any(sizes) else 'nothing'} from upstream" if sizes else ""


def policy_lines(results: Sequence[PolicyResult]) -> list[str]:
    """Return a line for each policy that a plan doesn't satisfy, and the number of the others."""
    lines = [
        escape(f"  {result.policy} ({result.level}): {result.waiver or result.status}")
        for result in results
        if result.status is not PolicyStatus.PASSED
    ]
    passed = len(results) - len(lines)
    return [*lines, f"  {pluralize(passed, 'policy', 'policies')} passed"] if passed else lines


ItemRow = tuple[Address, str, str]
"""An address, words, and names that aren't ours."""


def run_items(plan: Plan) -> list[ItemRow]:
    """Return how long each new run takes, why it starts, and the attributes that changed."""
    items = []
    for change in plan.acting:
        if (forecast := plan.runs.get(change.address)) is not None:
            is_first = change.action is Action.CREATE and change.reason is None
            why = "first run" if is_first else headline(change).rpartition(": ")[2]
            paths = escape(", ".join(map(format_path, change.replace_paths)))
            took, most = forecast.seconds, forecast.max_seconds
            durations = dict.fromkeys(format_duration(of(took)) for of in (min, max) if took)
            facts = (
                pluralize(forecast.gpus, "GPU") if forecast.gpus else "",
                f"took {' to '.join(durations)} in {pluralize(len(took), 'run')}" if took else "",
                f"at most {format_duration(most)}" if most else "",
                why,
            )
            items.append((change.address, "; ".join(filter(None, facts)), paths))
    return items


def lost_items(plan: Plan) -> list[ItemRow]:
    """Return checkpoints that are deleted, or not uploaded when their job or cluster is removed, by run."""
    removes = (Action.DELETE, Action.REPLACE)
    removed = {change.address for change in plan.acting if change.action in removes}
    rows = []
    for change in plan.changes if removed else ():
        is_deleted = change.action is Action.DELETE
        is_job = change.address.kind is Kind.JOB
        if is_job and (is_deleted or change.job_spec.cluster_address in removed):
            for run in map(RunRecord.from_json, change.outputs.get("runs") or ()):
                if run.reused_from is not None:
                    continue
                if is_deleted and plan.options.delete_checkpoints:
                    rows.append((change.address, f"all of run {run.number:d}", ""))
                elif names := escape(", ".join(run.reported.get("sync", {}).get("pending") or ())):
                    rows.append((change.address, f"run {run.number:d}", names))
    return rows


_Line = TypeVar("_Line", DeliveryRow, ImageRow)
_COMMIT = compile_lazily(r"[0-9a-f]{40}")
_UNKNOWN = "?"
_SHORT = 16
_WIDE = 100
"""Width from which tables have all columns."""
_MOST_NAMED = 4
"""Maximum number of nodes to name."""
_PRESENT = {True: "present", False: "pulled at start", None: _UNKNOWN}
_SENTENCES = {
    "namespace": "Mounted read-only, visible only to the job.",
    "container": "Mounted read-only in the container of the job.",
    "link": "Linked into the job's directory; read-only access is not enforced.",
}

_NARROWEST = {"WEIGHTS": 18, "JOB": 14, "NODE": 12, "IMAGE": 20, "ZONE": 10}
"""Minimum widths of the columns that may be shortened."""
_BILLING = (
    "Offers are tried in this order, after mirroring, which is not billed.",
    "Machines are billed from their creation until they are destroyed.",
)


def weights_table(lines: Sequence[WeightsRow], page: PageStyle) -> list[str]:
    """Return a table of weights: size, mirrored and missing bytes, time."""
    columns = {
        "WEIGHTS": [str(line.address) for line in lines],
        "REVISION": [short_revision(line.revision) for line in lines],
        "FILES": [_UNKNOWN if line.files is None else str(line.files) for line in lines],
        "SIZE": [
            "unknown" if line.files and line.bytes is None else _bytes(line.bytes) for line in lines
        ],
        "CACHED": [_share(line.bytes_mirrored, line.bytes) for line in lines],
        "TO DOWNLOAD": [_share(line.bytes_upstream, line.bytes) for line in lines],
    }
    if any(line.bytes_through_client for line in lines):
        columns["VIA CLIENT"] = [_share(line.bytes_through_client, line.bytes) for line in lines]
    if any(line.forecast_seconds for line in lines):
        columns["TIME"] = [_seconds(line.forecast_seconds) for line in lines]
    right = columns.keys() - {"WEIGHTS", "REVISION"}
    return _rows(columns, page, right, ("FILES", "REVISION", "VIA CLIENT"))


def deliveries_table(lines: Sequence[DeliveryRow], page: PageStyle) -> list[str]:
    """Return a table of deliveries; jobs of a matrix share rows.

    Columns without values are omitted; a mount shared by all rows is one line below.
    """
    lines, jobs = _merge_matrix_lines(lines)
    mounts = {line.mount for line in lines}
    shared = _SENTENCES.get(mounts.pop()) if len(mounts) == 1 else None
    columns = {
        **_owner_columns(lines, jobs),
        "WEIGHTS": [str(line.weights) for line in lines],
        "FROM": [origin(line.tiers) for line in lines],
        "ROUTE": ["-" if line.path == "none" else line.path for line in lines],
        "MOUNT": ["" if shared else _mount(line.mount) for line in lines],
        "TIME": [_seconds(line.forecast_seconds) for line in lines],
    }
    if all(line.forecast_seconds is None for line in lines):
        del columns["TIME"]
    if page.width < _WIDE:
        del columns["ROUTE"]
    right = {"RANK", "TIME"}
    rows = _rows(columns, page, right, ("ROUTE", "TIME", "MOUNT", "NODE", "WEIGHTS"))
    return [
        *rows,
        *([f"  {shared}"] if shared else []),
        *_path_reasons(lines),
        *_space_lines(lines),
    ]


def _owner_columns(lines: Sequence[_Line], jobs: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the columns job, rank and node."""
    ranks = {"RANK": [str(line.rank) for line in lines]}
    return {
        "JOB": jobs,
        **(ranks if any(line.rank for line in lines) else {}),
        "NODE": [escape(line.node or _UNKNOWN) for line in lines],
    }


def _path_reasons(lines: Sequence[DeliveryRow]) -> list[str]:
    """Return the reason of each route, with nodes if it isn't that of all."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        nodes.setdefault((line.path, line.why), set()).add(line.node or _UNKNOWN)
    reasons = []
    for (path, reason), names in nodes.items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        named = f" ({escape(', '.join(sorted(names)[:_MOST_NAMED]))}{more})"
        if reason:
            reasons.append(f"  {path}{named if len(nodes) > 1 else ''}: {escape(reason)}.")
    return sorted(reasons)


def _space_lines(lines: Sequence[DeliveryRow]) -> list[str]:
    """Return transfer size and free disk space of the scarcest nodes."""
    missing: dict[str, dict[str, int]] = {}
    space: dict[str, int] = {}
    for line in lines:
        if line.node is not None and line.tiers is not None and line.weights_space is not None:
            missing.setdefault(line.node, {})[line.content] = line.tiers.missing
            space[line.node] = line.weights_space
    sizes = {node: sum(missing[node].values()) for node in missing if any(missing[node].values())}
    scarcest = sorted(sizes, key=lambda node: (space[node] - sizes[node], node))
    shown = [
        f"  {escape(node)}: {format_bytes(sizes[node])} to transfer, {format_bytes(space[node])} free."
        for node in scarcest[:_MOST_NAMED]
    ]
    more = len(scarcest) - _MOST_NAMED
    return [*shown, f"  {more} more nodes have more free disk space."] if more > 0 else shown


def _merge_matrix_lines(lines: Sequence[_Line]) -> tuple[list[_Line], list[str]]:
    """Merge lines that differ only by the job of a matrix."""
    groups: dict[tuple[Address, _Line], list[_Line]] = {}
    for line in lines:
        groups.setdefault((line.job.group, replace(line, job=line.job.group)), []).append(line)
    jobs = [
        str(group_lines[0].job) if len(group_lines) == 1 else f"{group} ({len(group_lines)})"
        for (group, _), group_lines in groups.items()
    ]
    return [group_lines[0] for group_lines in groups.values()], jobs


def images_table(lines: Sequence[ImageRow], page: PageStyle) -> list[str]:
    """Return a table of container images by rank."""
    lines, jobs = _merge_matrix_lines(lines)
    columns = {
        **_owner_columns(lines, jobs),
        "IMAGE": [escape(line.image) for line in lines],
        "ENGINE": [line.engine or _UNKNOWN for line in lines],
        "DIGEST": [(line.digest or "by name").removeprefix("sha256:")[:12] for line in lines],
        "STATUS": [_PRESENT[line.present] for line in lines],
    }
    table_lines = _rows(columns, page, {"RANK"}, ("ENGINE", "DIGEST"))
    reasons = {line.image: line.unresolved_reason for line in lines if line.unresolved_reason}
    rdma = dict.fromkeys(str(line.node) for line in lines if line.rdma)
    table_lines += [f"  Containers on {escape(node)} get /dev/infiniband." for node in rdma]
    return table_lines + [
        f"  {escape(image)} is known by name only: {escape(reason)}"
        for image, reason in reasons.items()
    ]


def _rows(
    columns: Mapping[str, Sequence[str]],
    page: PageStyle,
    right: Container[str],
    drops: Sequence[str],
) -> list[str]:
    if page.table is not None:
        return page.table(columns, right)
    return table(
        list(columns),
        list(zip(*columns.values(), strict=True)),
        right=right,
        width=page.width,
        narrowest=_NARROWEST,
        drops=drops,
        style=page.style,
        indent="  ",
    )


def origin(tiers: TierFacts | None) -> str:
    """Format where bytes are: ``node 3.0 MB, upstream 1.4 GB``."""
    if tiers is None:
        return _UNKNOWN
    parts = asdict(tiers).items()
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count) or "-"


def short_revision(revision: str | None) -> str:
    """Shorten a revision: 12 characters of a commit, else the start."""
    if revision is None:
        return _UNKNOWN
    if _COMMIT.fullmatch(revision):
        return revision[:12]
    text = escape(revision.removeprefix("sha256:"))
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def _bytes(count: int | None) -> str:
    return _UNKNOWN if count is None else format_bytes(count)


def _share(count: int | None, total: int | None) -> str:
    if count is not None and count == 0:
        return "-"
    return "all" if count is not None and count == total else _bytes(count)


def _mount(mount: str) -> str:
    return {"": _UNKNOWN, "link": "link (advisory)"}.get(mount, mount)


def _seconds(seconds: float | None) -> str:
    """Format a duration; ``-`` for no transfer."""
    if seconds is None:
        return _UNKNOWN
    return format_duration(seconds) if seconds else "-"


def offer_lines(plan: Plan, page: PageStyle) -> list[str]:
    """Return a table of offers, their price sources, and what is billed when."""
    rows = [
        (address.name, zones, offer)
        for address, offers in plan.offers.items()
        for zones, offer in _merge_zones(offers)
    ]
    if not rows:
        return []
    offers = [offer for _, _, offer in rows]
    kept = [
        escape(f"{node['cluster']}/{node['name']}")
        for change in plan.changes
        if change.address in plan.offers and change.action is Action.UPDATE
        for node in change.outputs.get("nodes") or ()
    ]
    columns = {
        "CLUSTER": [name if len(plan.offers) > 1 else "" for name, _, _ in rows],
        "TYPE": [offer.type for offer in offers],
        "GPUS": [f"{offer.gpus} {offer.gpu_kind}" if offer.gpus else "" for offer in offers],
        "ZONE": [zones for _, zones, _ in rows],
        "MODEL": [offer.availability for offer in offers],
        "USD/H": [_price(offer.price_per_hour) for offer in offers],
        "QUOTA": ["" if o.quota_left is None else str(o.quota_left) for o in offers],
    }
    return [
        *_rows(columns, page, {"USD/H", "QUOTA"}, ("CLUSTER",)),
        f"  Prices: {_sources(offers)}.",
        *(f"  {escape(note)}." for note in dict.fromkeys(offer.note for offer in offers) if note),
        *(f"  {line}" for line in _BILLING),
        *([f"  Existing machines are used again: {', '.join(kept)}."] if kept else []),
    ]


def unattended_items(plan: Plan) -> list[ItemRow]:
    """Return what the machines of each cluster cost if no one returns."""
    items = []
    for row in plan.unattended:
        price = None if row.hourly is None else f"{row.hourly:.2f} USD per hour"
        words = f"billed until someone destroys it{f', {price}' if price else ''}"
        if row.seconds is not None:
            cost = "unknown price" if row.cost is None else f"{row.cost:.2f} USD"
            machines = pluralize(row.machines, "machine ends", "machines end")
            after = "the last run" if row.end == "guest" else "creation"
            words = f"{cost} ({machines} at most {format_duration(row.seconds)} after {after})"
        items.append((row.cluster, words, ""))
    return items


def _merge_zones(offers: Iterable[Offer]) -> list[tuple[str, Offer]]:
    """Merge consecutive offers that differ by zone only: ``us-east-1a/b``."""
    merged = []
    for offer, group in groupby(offers, key=lambda offer: replace(offer, zone="")):
        zone, *others = [each.zone for each in group]
        zones = [zone, *(other.removeprefix(zone[:-1]) for other in others)]
        merged.append(("/".join(zones) if zone else "any", offer))
    return merged


def _price(price: float | None) -> str:
    return _UNKNOWN if price is None else f"{price:.4f}".rstrip("0").ljust(4, "0")


def _sources(offers: Iterable[Offer]) -> str:
    named = dict.fromkeys((offer.price_source, offer.price_date) for offer in offers)
    return ", ".join(escape(f"{source} of {date}" if date else source) for source, date in named)

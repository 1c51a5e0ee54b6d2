"""Changes of a plan: the addresses to plan, their order, differences of values, and digests."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import replace
from trainctl.desired.values import DesiredState
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import shared_json, to_json
from trainctl.model.specs.location import CheckpointsLocation, StoreLocation
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import PlanPolicy, PolicyLevel
from trainctl.plan.values import Change, Plan, PlanInputs, PlanOptions

Edges = Mapping[Address, Iterable[Address]]

REMOVES = frozenset({Action.DELETE, Action.FORGET})


def closure(start: Iterable[Address], edges: Edges) -> set[Address]:
    """Return all addresses reachable from the start, including the start."""
    reached: set[Address] = set()
    pending = list(start)
    while pending:
        address = pending.pop()
        if address not in reached:
            reached.add(address)
            pending.extend(edges.get(address, ()))
    return reached


def reverse(edges: Edges) -> dict[Address, list[Address]]:
    """Return the edges in the opposite direction."""
    reversed_edges: dict[Address, list[Address]] = {}
    for address, targets in edges.items():
        for target in targets:
            reversed_edges.setdefault(target, []).append(address)
    return reversed_edges


def order_changes(
    changes: Iterable[Change], recorded: Mapping[Address, RecordedResource]
) -> tuple[Change, ...]:
    """Sort changes by dependencies, else in the given order, with removals last."""
    by_address = {change.address: change for change in changes}
    waits = change_dependencies(by_address, recorded)
    if not waits:
        return tuple(sorted(by_address.values(), key=lambda change: change.action in REMOVES))
    ranks = {
        address: (change.action in REMOVES, place, address)
        for place, (address, change) in enumerate(by_address.items())
    }
    followers = reverse(waits)
    counts = {address: len(needed) for address, needed in waits.items()}
    ready = [rank for address, rank in ranks.items() if address not in counts]
    heapq.heapify(ready)
    waiting = iter(sorted(ranks.values()))
    order: dict[Address, Change] = {}
    while len(order) < len(by_address):
        # If nothing is ready, recorded dependencies have a cycle; the first address breaks it.
        *_, address = heapq.heappop(ready) if ready else next(waiting)
        if address in order:
            continue
        order[address] = by_address[address]
        for follower in followers.get(address, ()):
            counts[follower] -= 1
            if counts[follower] == 0:
                heapq.heappush(ready, ranks[follower])
    return tuple(order.values())


def change_dependencies(
    changes: Mapping[Address, Change], recorded: Mapping[Address, RecordedResource]
) -> dict[Address, set[Address]]:
    """Return the changes to apply before each change, if any.

    Dependencies come before a change, dependants before a removal.
    """
    waits: dict[Address, set[Address]] = {}
    removed = {address for address, change in changes.items() if change.action in REMOVES}
    for address, change in changes.items():
        removes = address in removed
        for needed in () if removes else (*change.depends_on, *change.waits_for):
            if needed in changes and needed not in removed:
                waits.setdefault(address, set()).add(needed)
        record = recorded.get(address) if removed else None
        for needed in record.depends_on if record else change.depends_on if removes else ():
            if needed in removed and needed != address:
                waits.setdefault(needed, set()).add(address)
    return waits


def planned_addresses(
    desired: DesiredState, state: State, options: PlanOptions
) -> frozenset[Address]:
    """Return the addresses that a plan includes, and so need to be refreshed."""
    inputs = PlanInputs(desired=desired, state=state, options=options)
    return frozenset(_selected(replace(inputs, options=expand_matrix_names(inputs))))


def expand_matrix_names(inputs: PlanInputs) -> PlanOptions:
    """Expand names of matrices in the options to all of their jobs."""
    options, state = inputs.options, inputs.state
    if not (options.targets or options.excludes or options.replace or options.run):
        return options
    known = {*inputs.desired.resources, *state.resources, *state.open_intents}
    jobs: dict[Address, list[Address]] = {}
    for address in sorted(filter(lambda address: address.key is not None, known), key=Address.rank):
        jobs.setdefault(address.group, []).append(address)

    def expand(addresses: tuple[Address, ...]) -> tuple[Address, ...]:
        expanded: list[Address] = []
        for address in addresses:
            expanded += [address] if address in known else jobs.get(address, [address])
        return tuple(dict.fromkeys(expanded))

    return replace(
        options,
        targets=expand(options.targets),
        excludes=expand(options.excludes),
        replace=expand(options.replace),
        run=expand(options.run),
    )


def select_addresses(inputs: PlanInputs) -> list[Address]:
    """Return the sorted addresses to plan; jobs of a matrix in their declared order."""
    selected, declared = _selected(inputs), inputs.desired.resources
    others = sorted((each for each in selected if each not in declared), key=Address.rank)
    listed = [*(each for each in declared if each in selected), *others]
    return sorted(listed, key=lambda address: address.rank()[:2])


def _selected(inputs: PlanInputs) -> set[Address]:
    options, state = inputs.options, inputs.state
    desired = {} if options.destroy else inputs.desired.resources
    everything = {*desired, *state.resources, *state.open_intents, *state.orphaned_intents}
    if options.refresh_only:
        everything = set(state.resources)
    if not options.targets and not options.excludes:
        return everything
    dependencies = {address: resource.depends_on for address, resource in desired.items()}
    removed = {
        address: recorded.depends_on
        for address, recorded in state.resources.items()
        if address not in desired
    }
    selected = everything
    if options.targets:
        selected = closure(options.targets, dependencies)
        targets = [target for target in options.targets if target in removed]
        selected |= closure(targets, reverse(removed))
    if options.excludes:
        selected -= closure(options.excludes, reverse(dependencies))
        selected -= closure(options.excludes, removed)
    return selected & everything


Path = tuple[str | int, ...]

_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """Convert mappings to dicts and sequences to lists, as JSON does."""
    # Most values are atoms in dicts; checking exact types first is much faster.
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in _ATOMS else plain(item) for key, item in value.items()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def changed_paths(before: Any, after: Any) -> tuple[Path, ...]:
    """Return the sorted paths of all values that differ."""
    if before == after:
        return ()
    from deepdiff import DeepDiff  # slow to load

    diff = DeepDiff(before, after, view="tree")
    paths = {tuple(level.path(output_format="list")) for kind in diff.values() for level in kind}
    return tuple(sorted(paths, key=lambda path: [str(part) for part in path]))


def keep_recorded(recorded: Any, desired: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Use the recorded values at these dotted paths if both values exist."""
    merged = plain(desired) if paths else desired
    for path in paths:
        source: Any = recorded
        target: Any = merged
        *parts, last = path.split(".")
        for part in parts:
            source, target = _at(source, part), _at(target, part)
        value = _at(source, last, missing=_MISSING)
        if value is _MISSING:
            continue
        if isinstance(target, dict):
            target[last] = value
        elif isinstance(target, list) and _at(target, last, missing=_MISSING) is not _MISSING:
            target[int(last)] = value
    return merged


def _at(value: Any, part: str, missing: Any = None) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, missing)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return missing


_MISSING = object()


def plan_digest(changes: Iterable[Change], lineage: str, policies: str) -> str:
    """Return the digest of all changes but no-ops, independent of their order, in a state under these policies."""
    changes = [*changes]
    digests = [change_digest(change) for change in changes if change.action is not Action.NOOP]
    digests += [edit_digest(change.address, change.edit) for change in changes if change.edit]
    return combined_digest(digests, lineage, policies)


def edit_digest(address: Address, edit: str) -> str:
    """Return the digest of an edit of a record."""
    return digest({"address": str(address), "edit": edit})


def combined_digest(changes: Iterable[str], lineage: str, policies: str) -> str:
    """Return the digest of a plan from those of its changes."""
    digests = sorted(changes)
    return digest({"lineage": lineage, "policies": policies, "changes": digests} if digests else {})


def change_digest(change: Change) -> str:
    """Return the digest of what a change does, to which version, and of all that it uses."""
    known = vars(change)  # a plan needs it, and each attempt at the change
    known["digest"] = known.get("digest") or digest(
        {
            "address": str(change.address),
            "action": change.action.json_actions,
            "provider": change.provider,
            "after": plain(change.after),
            "replace_paths": [list(path) for path in change.replace_paths],
            "lifecycle": shared_json(change.lifecycle),
            "version": change.seen,
            "stops": change.stops.id if change.stops else None,
            "covers": plain(change.covers),
        }
    )
    return str(known["digest"])


def policies_digest(policies: Iterable[PlanPolicy]) -> str:
    """Return the digest of the set of mandatory policies, wherever they are written; empty without any."""
    mandatory = {
        digest(to_json(replace(policy, where="", waiver=None)))
        for policy in policies
        if policy.level is PolicyLevel.MANDATORY
    }
    return digest(sorted(mandatory)) if mandatory else ""


def with_coverage(desired: DesiredState, versions: Mapping[Address, int], change: Change) -> Change:
    """Add to a change what its digest covers in addition to its values."""
    if change.action is Action.NOOP:
        return change
    covers: dict[str, Any] = {
        "reads": {str(address): versions.get(address, 0) for address in change.depends_on}
    }
    if change.after is not None:
        covers |= _settings(desired, change)
    if change.reuses is not None:
        covers["reuses"] = change.reuses.run.id
    return replace(change, covers=covers)


def _settings(desired: DesiredState, change: Change) -> dict[str, Any]:
    """Return the store and the secrets that a change uses, by name or source, without values."""
    names: set[str | None] = set()
    store: StoreLocation | CheckpointsLocation | None = None
    if change.address.kind is Kind.WEIGHTS:
        auth = WeightsSpec.from_attributes(change.after or {}).auth
        names, store = {auth.auth_secret_name if auth else None}, desired.mirror
    elif change.address.kind is Kind.JOB:
        job = change.job_spec
        login = job.image.docker_auth if job.image else None
        names = {*job.runtime.secret_environment.values(), *(login.secrets if login else ())}
        if job.runtime.checkpointing_config.enabled or job.runtime.loads:
            store = desired.checkpoints
    names.add(store.secret if store else None)
    secrets = {name: to_json(spec) for name, spec in desired.secrets.items() if name in names}
    return {"store": to_json(store), "secrets": secrets}


def summarize_changes(changes: Iterable[Change]) -> list[str]:
    """Return a line for each change but no-ops: address, actions and the paths that differ; the first of many."""
    acting = [change for change in changes if change.acts]
    lines = [
        f"{change.address}: {change.edit or ' and '.join(change.action.json_actions)}"
        + differing_paths(change.before, change.after)
        for change in acting[:_MOST_NAMED]
    ]
    more = len(acting) - len(lines)
    return [*lines, f"and {more} more"] if more else lines or ["nothing"]


def differing_paths(before: Any, after: Any) -> str:
    """Return the first paths that differ as `` (a.b, c)``; empty if one of the values is missing."""
    if before is None or after is None:
        return ""
    paths = [".".join(map(str, path)) for path in changed_paths(plain(before), plain(after))]
    more = ", …" if len(paths) > _MOST_PATHS else ""
    return f" ({', '.join(paths[:_MOST_PATHS])}{more})" if paths else ""


_MOST_NAMED, _MOST_PATHS = 20, 5


def with_images(plan: Plan, found: Mapping[str, str | TrainctlError]) -> Plan:
    """Add the digests of images, or the errors of their registries, to the rows and to what new runs cover."""
    digests = {image: value for image, value in found.items() if isinstance(value, str)}
    reasons = {image: value.summary for image, value in found.items() if not isinstance(value, str)}
    rows = tuple(
        replace(row, digest=digests.get(row.image), unresolved_reason=reasons.get(row.image, ""))
        for row in plan.images
    )
    images = {row.job: row.digest for row in rows}
    changes = tuple(
        replace(change, covers={**change.covers, "image_digest": images[change.address]})
        if change.address in images
        else change
        for change in plan.changes
    )
    digest_ = plan_digest(changes, plan.lineage, plan.policies)
    return replace(plan, images=rows, changes=changes, digest=digest_)

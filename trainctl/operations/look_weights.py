"""Resolving every source that must be resolved, by metadata only, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import WeightsFacts
from trainctl.resources.weights import wanted_of
from trainctl.weights.lock import LockFile
from trainctl.weights.resolve import Resolution, resolve


@dataclass(slots=True)
class WeightsSeen:
    """What was found out of each weights resource, and what went wrong."""

    facts: dict[Address, WeightsFacts] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def look_at_weights(
    workspace: Workspace,
    state: State,
    wanted: Callable[[Address], bool],
    *,
    upgrade: bool,
    parallelism: int,
) -> WeightsSeen:
    """Resolve the sources that ``wanted`` names; one that can't be resolved is an error diagnostic with its address."""
    seen = WeightsSeen()
    locked = LockFile(workspace.setting.directory).entries()
    todo = {
        address: resource.attributes
        for address, resource in workspace.desired.resources.items()
        if address.kind is Kind.WEIGHTS and wanted(address)
    }

    def look(attributes: Mapping[str, Any]) -> Resolution | TrainctlError:
        try:
            what = wanted_of(attributes, workspace.setting.directory)
            entry = locked.get((what.source, what.allow, what.ignore))
            return resolve(
                what, workspace.secrets.credential(attributes), locked=entry, upgrade=upgrade
            )
        except TrainctlError as failure:
            return failure

    with ThreadPoolExecutor(parallelism, thread_name_prefix="resolve") as pool:
        for address, found in zip(todo, pool.map(look, todo.values()), strict=True):
            if isinstance(found, TrainctlError):
                seen.diagnostics.append(_failure(workspace, address, found))
            else:
                _take(workspace, seen, address, found)
    return seen


def _take(workspace: Workspace, seen: WeightsSeen, address: Address, found: Resolution) -> None:
    mirrored, listing = workspace.mirror.mirrored_bytes(found.resolved)
    seen.facts[address] = WeightsFacts(
        found.resolved, mirrored, listing, found.locked, found.unmatched
    )
    where = workspace.desired.resources[address].where
    seen.diagnostics += [
        warning(one.summary, one.detail, address=str(address), where=where)
        for one in found.warnings
    ]


def _failure(workspace: Workspace, address: Address, failure: TrainctlError) -> Diagnostic:
    return error(
        failure.summary,
        failure.detail,
        address=str(address),
        where=workspace.desired.resources[address].where,
    )

"""Plans of machines: what providers would do on their platforms, added to a plan."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import replace
from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeError, PermissionDenied
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, of_error, warning
from trainctl.model.specs.resource import ClusterSpec
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import plain, with_machines
from trainctl.plan.values import Change, Plan, PlanInputs
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import provider_cluster

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import MachinePlan, PlansMachines

_CREATES = (Action.CREATE, Action.UPDATE, Action.REPLACE)


def plan_with_machines(
    workspace: Workspace, inputs: PlanInputs, make: Callable[[PlanInputs], Plan], *, offline: bool
) -> Plan:
    """Make a plan, then again with what the providers of its clusters say about their machines."""
    plan, found, problems = make(inputs), {}, list[Diagnostic]()
    for change in plan.changes:
        provider = _planner(workspace, change, looks=change.address in inputs.observed)
        if provider is None:
            continue
        if offline:
            problems.append(
                warning(
                    f"machines of {change.address} are not planned offline",
                    "Plan without --offline to review what is created.",
                    address=str(change.address),
                    code="machines-not-planned",
                )
            )
            continue
        try:
            key = change.resumes or _key(workspace, plan, change)
            plans, outdated = _plan(workspace, inputs.state, provider, change, key)
            if plans:
                found[change.address] = key, plans
            if outdated:
                problems.append(_outdated_warning(change, outdated))
        except (NodeError, PermissionDenied) as error:
            problems.append(of_error(error, str(change.address)))
    if not found and not problems:
        return plan
    planned = [machine.planned for _, plans in found.values() for machine in plans]
    known = {node.id: node for node in planned if node is not None}
    prices = {node.id: node.price_per_hour for node in known.values() if node.price_per_hour}
    more = replace(
        inputs,
        prices={**inputs.prices, **prices},
        machines={
            address: tuple(known.get(node.id, node) for node in nodes)
            for address, nodes in inputs.machines.items()
        },
        diagnostics=(*inputs.diagnostics, *problems),
    )
    return with_machines(make(more), found)


def _outdated_warning(change: Change, nodes: Sequence[str]) -> Diagnostic:
    return warning(
        f"{', '.join(nodes)} of {change.address} stay as they are: their module has changed and would replace resources",
        f"To get new machines, plan with --replace {change.address}.",
        address=str(change.address),
        code="machines-outdated",
    )


def _planner(workspace: Workspace, change: Change, *, looks: bool) -> Any:
    """Return the provider of a cluster that changes, if it plans machines; also of another one that is observed."""
    acts = change.action in (*_CREATES, Action.DELETE)
    if change.address.kind is not Kind.CLUSTER or not (acts or looks):
        return None
    provider = workspace.provider(change.provider)
    return provider if hasattr(provider, "plan_machines") else None


def _key(workspace: Workspace, plan: Plan, change: Change) -> str:
    """Return a key that each plan of this change to this state has."""
    place = plan.lineage or f"{describe_process().machine} {workspace.state_url}"
    text = f"{place} {change.address} {change.seen} {digest(plain(change.after or {}))}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def _plan(
    workspace: Workspace, state: State, provider: PlansMachines, change: Change, key: str
) -> tuple[Sequence[MachinePlan], Sequence[str]]:
    """Plan the machines of nodes that the change creates, changes or deletes, as the handler of clusters does.

    Also returns the nodes that would have to be replaced.
    """
    recorded, instance = state.resources.get(change.address), workspace.provider(change.provider)
    made = nodes_of(recorded) if recorded else ()
    attempted = unprovisioned_nodes(recorded) if recorded else ()
    spec = ClusterSpec.from_attributes(change.after or change.before or {})
    cluster = provider_cluster(change.address.name, spec)
    desired = {node.name for node in instance.plan(cluster)} if change.after is not None else set()
    if change.action in (Action.REPLACE, Action.DELETE):
        kept = set()
    else:
        looks = change.reason is ActionReason.MISSING
        kept = {
            node.name
            for node in made
            if not (looks and instance.read(node) is ResourceStatus.MISSING)
        }
    keys = {name: f"{key}/{name}" for name in sorted(desired - kept)}
    keys |= {node.name: node.key for node in attempted if node.key and node.name in keys}
    existing = {node.name: node.key for node in made if node.name in desired & kept}
    ending = [
        node
        for node in (*made, *attempted)
        if node.key not in keys.values() and node.name not in desired & kept
    ]
    plans = provider.plan_machines(cluster, {**existing, **keys}, ending)
    in_place = [item for item in plans if item.key in existing.values()]
    outdated = [
        item.node for item in in_place if any("delete" in each.actions for each in item.changes)
    ]
    left = [
        item
        for item in plans
        if item not in in_place or (item.changes and item.node not in outdated)
    ]
    return left, outdated

"""Plans of machines: what providers would do on their platforms, added to a plan."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import replace
from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeError, PermissionDenied
from trainctl.model.action import Action
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, Severity, of_error, warning
from trainctl.model.specs.resource import ClusterSpec
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import plain, with_machines
from trainctl.plan.values import Change, Plan, PlanInputs
from trainctl.resources.agents import nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import provider_cluster

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import MachinePlan


def plan_with_machines(
    workspace: Workspace, inputs: PlanInputs, make: Callable[[PlanInputs], Plan], *, offline: bool
) -> Plan:
    """Make a plan, then again with what the providers of its clusters say about their machines."""
    plan, found, problems = make(inputs), {}, list[Diagnostic]()
    for change in plan.changes:
        address, is_cluster = str(change.address), change.address.kind is Kind.CLUSTER
        provider: Any = workspace.provider(change.provider) if is_cluster else None
        is_read = change.acts or change.address in inputs.observed
        if not (is_read and hasattr(provider, "plan_machines")):
            continue
        try:
            key = change.resumes or _key(workspace, plan, change)
            plans, outdated = _plan(inputs, None if offline else provider, change, key)
        except (NodeError, PermissionDenied) as error:
            problem = of_error(error, address)
            if offline or change.action is Action.DELETE:  # the others can be deleted
                problem = replace(problem, severity=Severity.WARNING, forbids=False)
            problems.append(problem)
            continue
        if plans:
            found[change.address] = key, plans
        if outdated:
            summary = f"{', '.join(outdated)} of {address} stay as they are: their module would replace resources"
            advice = f"To get new machines, plan with --replace {address}."
            problems.append(warning(summary, advice, address=address, code="machines-outdated"))
    if not found and not problems:
        return plan
    known = {item.node.id: item.node for _, plans in found.values() for item in plans}
    prices = {id_: node.price_per_hour for id_, node in known.items() if node.price_per_hour}
    machines = {
        address: tuple(known.get(node.id, node) for node in nodes)
        for address, nodes in inputs.machines.items()
    }
    diagnostics = (*inputs.diagnostics, *problems)
    more = replace(inputs, prices=inputs.prices | prices, machines=machines, diagnostics=diagnostics)  # fmt: skip
    return with_machines(make(more), found)


def _key(workspace: Workspace, plan: Plan, change: Change) -> str:
    """Return a key that each plan of this change to this state has."""
    place = plan.lineage or f"{describe_process().machine} {workspace.state_url}"
    text = f"{place} {change.address} {change.seen} {digest(plain(change.after or {}))}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def _plan(
    inputs: PlanInputs, provider: Any, change: Change, key: str
) -> tuple[Sequence[MachinePlan], Sequence[str]]:
    """Plan the machines that the change creates, updates or deletes, as the handler of clusters does.

    Also returns the nodes that would have to be replaced. NodeError without a provider.
    """
    if provider is None:
        raise NodeError(
            f"machines of {change.address} are not planned offline",
            "Plan without --offline to review what is created.",
            code="machines-not-planned",
        )
    recorded = inputs.state.resources.get(change.address)
    observed = inputs.observed.get(change.address)
    nodes, existing = nodes_of(recorded), (*unprovisioned_nodes(recorded), *nodes_of(recorded))
    lost = observed.missing if observed else ()
    made = {node.name: node.key for node in existing if node.name not in lost}
    if change.action in (Action.REPLACE, Action.DELETE):
        made.clear()
    spec = ClusterSpec.from_attributes(change.after or change.before or {})
    cluster = provider_cluster(change.address.name, spec)
    desired = [node.name for node in provider.plan(cluster)] if change.after is not None else ()
    keys = {name: made.get(name) or f"{key}/{name}" for name in desired}
    ending = [node for node in existing if node.key not in keys.values()]
    in_place = {node.key for node in nodes} & {*keys.values()}
    unread = {node.key for node in nodes if observed and node.id in observed.unobserved}
    readable = {name: key for name, key in keys.items() if key not in unread}
    plans = [
        item
        for item in provider.plan_machines(cluster, readable, ending)
        if item.changes or item.node.key not in in_place
    ]
    outdated = [
        item.node.name
        for item in plans
        if item.node.key in in_place and any("delete" in each["actions"] for each in item.changes)
    ]
    return [item for item in plans if item.node.name not in outdated], outdated

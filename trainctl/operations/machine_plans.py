"""Plans of machines: what providers would do on their platforms, added to a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import replace
from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeError, PermissionDenied
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, Severity, of_error, warning
from trainctl.model.specs.resource import ClusterSpec
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import plain, plan_digest
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Change, Observation, Plan, PlanInputs
from trainctl.plugin_api.machines import MachinePlan, PlansMachines
from trainctl.plugin_api.provider import ClusterSettings, ResourceStatus
from trainctl.resources.agents import nodes_of, unprovisioned_nodes


def plan_with_machines(
    workspace: Workspace, inputs: PlanInputs, make: Callable[[PlanInputs], Plan], *, offline: bool
) -> Plan:
    """Make a plan with what the providers of its clusters say about their machines."""
    problems = list[Diagnostic]()
    found: dict[Address, tuple[str, Sequence[MachinePlan]]] = {}
    for change in make_plan(inputs).changes:
        if not (change.acts or change.address in inputs.observed):
            continue
        address, is_cluster = str(change.address), change.address.kind is Kind.CLUSTER
        provider = workspace.provider(change.provider) if is_cluster else None
        if not isinstance(provider, PlansMachines):
            continue
        if offline:
            summary = f"machines of {address} are not planned offline"
            advice = "Plan without --offline to review what is created."
            problems.append(warning(summary, advice, address=address, code="machines-not-planned"))
            continue
        key = change.resumes or _key(workspace, change)
        try:
            plans, outdated = _plan(inputs, provider, change, key)
        except (NodeError, PermissionDenied) as error:
            problem = of_error(error, address)
            if change.action is Action.DELETE:  # the others can be deleted
                problem = replace(problem, severity=Severity.WARNING, forbids=False)
            problems.append(problem)
            continue
        if plans:
            found[change.address] = key, plans
        if outdated:
            summary = f"{', '.join(outdated)} of {address} stay as they are: their module would replace resources"
            advice = f"To get new machines, plan with --replace {address}."
            problems.append(warning(summary, advice, address=address, code="machines-outdated"))
    known = {item.node.id: item.node for _, plans in found.values() for item in plans}
    prices = {id_: node.price_per_hour for id_, node in known.items() if node.price_per_hour}
    nodes = {
        address: tuple(known.get(node.id, node) for node in of_cluster)
        for address, of_cluster in inputs.planned_nodes.items()
    }
    inputs = replace(inputs, planned_nodes=nodes, diagnostics=(*inputs.diagnostics, *problems))
    plan = make(replace(inputs, prices=inputs.prices | prices))
    changes = tuple(
        _with_machines(change, *found[change.address]) if change.address in found else change
        for change in plan.changes
    )
    return replace(plan, changes=changes, digest=plan_digest(changes, plan.lineage, plan.policies))


def _key(workspace: Workspace, change: Change) -> str:
    """Return a key that each plan of this change to this state has, also before the state exists."""
    place = [describe_process().machine, workspace.state_url]
    return digest([*place, str(change.address), change.seen, plain(change.after)])


def _plan(
    inputs: PlanInputs, provider: PlansMachines, change: Change, key: str
) -> tuple[Sequence[MachinePlan], Sequence[str]]:
    """Plan the machines that the change creates, updates or deletes, as the handler of clusters does.

    Also returns the nodes that would have to be replaced.
    """
    recorded = inputs.state.resources.get(change.address)
    observed = inputs.observed.get(change.address, Observation(ResourceStatus.PRESENT))
    nodes, existing = nodes_of(recorded), (*unprovisioned_nodes(recorded), *nodes_of(recorded))
    kept = {node.name: node.key for node in existing if node.name not in observed.missing}
    if change.action is Action.REPLACE:
        kept.clear()
    spec = ClusterSpec.from_attributes(change.after or change.before or {})
    cluster = ClusterSettings(change.address.name, spec.settings)
    desired = [node.name for node in provider.plan(cluster)] if change.after is not None else ()
    keys = {name: kept.get(name) or f"{key}/{name}" for name in desired}
    ending = [node for node in existing if node.key not in keys.values()]
    in_place = {node.key for node in nodes} & {*keys.values()}
    unread = {node.key for node in nodes if node.id in observed.unobserved}
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


def _with_machines(change: Change, key: str, plans: Sequence[MachinePlan]) -> Change:
    """Add the plans of its machines to a change, which then covers what they do."""
    if change.action is Action.NOOP:  # changed in place
        why, note = ActionReason.CONFIG_CHANGED, "its machines differ from what is declared"
        change = replace(change, action=Action.UPDATE, reason=why, note=note)
    covers = {**change.covers, "machines": [[item.node.name, item.digest] for item in plans]}
    return replace(change, key=key, machines=tuple(plans), covers=covers)

"""Survey, then plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from trainctl.errors import NodeError, StalePlan, TrainctlError
from trainctl.ledger.state import Recorded, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.operations.mirrors import is_there
from trainctl.operations.preconnect import connect
from trainctl.operations.runs import begun_runs
from trainctl.operations.secrets import refusals
from trainctl.operations.survey import LookOptions
from trainctl.operations.survey.caches import look_at_caches
from trainctl.operations.survey.checks import entangled, leaks, unsupported
from trainctl.operations.survey.code import CodeSeen, look_at_code, tree_of
from trainctl.operations.survey.mirror import MirrorSeen, look_at_mirror
from trainctl.operations.survey.nodes import look_at_nodes
from trainctl.operations.survey.weights import WeightsSeen, look_at_weights
from trainctl.operations.workspace import Workspace
from trainctl.plan.graph import planned
from trainctl.plan.planfile import remaining, staleness
from trainctl.plan.planner import make_plan
from trainctl.plan.values import CacheFacts, Inputs, Observation, Options, Plan, Start
from trainctl.resources.jobs import observed
from trainctl.resources.registry import handlers
from trainctl.resources.run_control import RunControl
from trainctl.spi.provider import Presence
from trainctl.weights.mirrors import is_far

_HERE = frozenset({Kind.PROJECT, Kind.CACHE})
"""Kinds of which nothing is anywhere but in the state."""


def plan_of(
    workspace: Workspace,
    options: Options,
    look: LookOptions,
    starts: Mapping[Address, Start] | None = None,
) -> Plan:
    """The plan for the world as it is now. Appends nothing, writes nothing."""
    state = workspace.ledger.state()
    desired = workspace.desired
    diagnostics = list(desired.warnings)
    # First of all: if trust can't be read nothing is asked.
    refused = [] if options.destroy else refusals(workspace)
    known = {one.summary for one in refused}
    diagnostics += refused
    if not options.destroy:
        connect(workspace, state, look)
    with ThreadPoolExecutor(3, thread_name_prefix="look") as pool:
        if look.refresh and not look.offline:
            pool.submit(workspace.mirror.connect)
        recorded = pool.submit(_look_at_recorded, workspace, state, look)
        scanned = None if options.destroy else pool.submit(look_at_code, workspace)
        among = planned(desired, state, options)
        weights = (
            WeightsSeen() if options.destroy else look_at_weights(workspace, state, look, among)
        )
        mirror = weights.mirror
        if options.destroy and look.refresh and not (look.offline and is_far(workspace.mirror)):
            mirror = look_at_mirror(workspace, state)
        if not (look.refresh and mirror.asked):
            mirror = MirrorSeen(site=workspace.mirror_site())
        code = scanned.result() if scanned else CodeSeen()
        nodes = look_at_nodes(
            workspace,
            state,
            weights,
            code.needs,
            asked=lambda provider: not options.destroy and _is_asked(workspace, provider, look),
            parallelism=look.parallelism,
        )
        observed, caches, begun = recorded.result()
    if not options.destroy:
        diagnostics += [
            *unsupported(desired),
            *entangled(workspace),
            *leaks(workspace, weights.facts),
        ]
    inputs = Inputs(
        desired=desired,
        state=state,
        observed={**observed, **mirrored(state, mirror)},
        begun=begun,
        code=code.trees,
        weights=weights.facts,
        nodes=nodes.facts,
        node_names=nodes.names,
        prices=nodes.prices,
        lacks=code.lacks,
        caches=caches,
        options=options,
        lock_readonly=look.writes_lock is False,
        policies=() if options.destroy else workspace.trust.policies,
        starts=starts or {},
        diagnostics=(
            *diagnostics,
            *(one for one in weights.diagnostics if not (one.forbids and one.summary in known)),
            *code.problems,
            *nodes.diagnostics,
        ),
        unasked=frozenset(nodes.unasked),
    )
    return make_plan(inputs)


def _look_at_recorded(
    workspace: Workspace, state: State, look: LookOptions
) -> tuple[
    dict[Address, Observation],
    dict[Address, tuple[CacheFacts, ...]],
    dict[Address, tuple[RunRecord, ...]],
]:
    """Refresh what is recorded outside the mirror, and what attempts have begun without a record."""
    if not look.refresh:
        return {}, {}, {}
    near = _near(workspace, state) if look.offline else state
    found = observe(workspace, near, look.parallelism)
    return found, look_at_caches(workspace, near, look.parallelism), begun_runs(workspace, near)


def _is_asked(workspace: Workspace, provider: str, look: LookOptions) -> bool:
    """Whether a provider's nodes are asked; offline only those that are this machine."""
    return look.refresh and (not look.offline or workspace.agents.shares_disk(provider))


def _near(workspace: Workspace, state: State) -> State:
    """Of what is recorded that which is on this machine."""
    clusters = {
        one.address.name: workspace.agents.shares_disk(one.provider)
        for one in state.resources.values()
        if one.address.kind is Kind.CLUSTER
    }

    def is_near(one: Recorded) -> bool:
        where = (
            one.address.name if one.address.kind is Kind.CLUSTER else one.attributes.get("cluster")
        )
        return where is None or clusters.get(str(where), False)

    return replace(
        state, resources={name: one for name, one in state.resources.items() if is_near(one)}
    )


def refuse_stale(workspace: Workspace, plan: Plan) -> Plan:
    """What of a saved plan is still to be done; StalePlan says what moved since it was made."""
    state = workspace.ledger.state()
    left = replace(plan, changes=remaining(plan, state))
    moved = [*map(str, staleness(plan, state)), *_changed_code(workspace, left)]
    if moved:
        raise StalePlan("the saved plan is stale", "\n".join([*moved, "Plan again."]))
    return left


def _changed_code(workspace: Workspace, plan: Plan) -> Iterator[str]:
    """Jobs whose code is not the one that was reviewed."""
    for change in plan.changes:
        if change.address not in plan.code or change.action is Action.NOOP:
            continue
        tree = tree_of(workspace, change.job_spec.code.path)
        if isinstance(tree, TrainctlError):
            yield f"{change.address}: {tree.summary}"
        elif tree.digest != plan.code[change.address].digest:
            yield f"{change.address}: its code changed since the plan was made"


def observe(workspace: Workspace, state: State, parallelism: int) -> dict[Address, Observation]:
    """What a look at everything that is recorded finds, but for what is in the mirror."""
    kinds = handlers(workspace.ports())

    def look(recorded: Recorded) -> Observation:
        try:
            return kinds[recorded.address.kind].read(recorded, state.resources.get)
        except NodeError as failure:
            return Observation(Presence.UNREACHABLE, detail=failure.summary)

    found = {
        one.address: look(one) for one in state.resources.values() if one.address.kind in _HERE
    }
    jobs = [one for one in state.resources.values() if one.address.kind is Kind.JOB]
    far = _HERE | {Kind.JOB, Kind.WEIGHTS}
    others = [one for one in state.resources.values() if one.address.kind not in far]
    with ThreadPoolExecutor(parallelism, thread_name_prefix="read") as pool:
        runs = pool.submit(observed, RunControl(workspace.agents, state.resources.get), jobs)
        found |= zip((one.address for one in others), pool.map(look, others), strict=True)
        return {**found, **runs.result()}


def mirrored(state: State, mirror: MirrorSeen) -> dict[Address, Observation]:
    """Observations of recorded weights by a survey of the mirror; without one, only of those that are in another mirror."""
    weights = [one for one in state.resources.values() if one.address.kind is Kind.WEIGHTS]
    found = ((one.address, _mirrored(one, mirror)) for one in weights)
    return {address: seen for address, seen in found if seen is not None}


def _mirrored(weights: Recorded, mirror: MirrorSeen) -> Observation | None:
    if mirror.problem is not None:
        return Observation(Presence.UNREACHABLE, detail=mirror.problem.summary)
    recorded = mirror.site and mirror.site.of(weights.outputs)
    moved = mirror.site is not None and recorded is not None and mirror.site.is_not(recorded)
    # A directory that isn't here is on another machine, where the same project is applied.
    if recorded and moved and is_there(recorded.url):
        return Observation(Presence.PRESENT, elsewhere=str(recorded))
    if not mirror.asked:
        return None
    if weights.outputs.get("listing") in mirror.listings:
        return Observation(Presence.PRESENT)
    return Observation(Presence.GONE, detail=f"the mirror was {recorded}" if moved else "")

"""Plan for an author who is not trusted: from the files of the directory and public sources only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainctl.base.lazy_dataclass import replace
from trainctl.base.retry import RetryPolicy
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.diagnostics import Diagnostic, Severity, of_error, warning
from trainctl.operations.confinement import unconfined
from trainctl.operations.contents import resolve_images
from trainctl.operations.plan_checks import unsupported
from trainctl.operations.policies import with_policies
from trainctl.operations.survey.code import survey_code
from trainctl.operations.survey.nodes import providers_in_use
from trainctl.operations.workspace import Workspace
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs, PlanOptions, WeightsFacts
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.weights.lock import LockFile
from trainctl.weights.resolution import SourceRequest, resolve

_RETRY = RetryPolicy(attempts=2, unanswered=1, patience=0)


def create_untrusted_plan(workspace: Workspace, options: PlanOptions, parallelism: int) -> Plan:
    """Create a plan that can be reviewed, but not applied. Call it in ``confined``."""
    desired, state = workspace.desired, State()
    weights, problems = _survey_weights(workspace, parallelism)
    code = survey_code(workspace)
    providers = providers_in_use(workspace, state)
    nodes = {}
    for item in of_kind(desired.external, Kind.CLUSTER):
        if item.provider in providers:
            settings = ClusterSettings(item.address.name, item.cluster_spec.settings)
            nodes[item.address] = tuple(providers[item.provider].plan(settings))
    notice = warning(
        "planned without the state, secrets, nodes, mirror and private sources",
        "Everything is shown as new. Review the complete plan before it is applied.",
        code="untrusted-plan",
    )
    inputs = PlanInputs(
        desired=desired,
        state=state,
        code=code.trees,
        weights=weights,
        planned_nodes=nodes,
        capabilities={name: found.capabilities for name, found in providers.items()},
        missing_requirements=code.missing_requirements,
        options=replace(options, untrusted=True),
        policies=workspace.trust.policies,
        diagnostics=(notice, *desired.warnings, *unsupported(desired), *problems, *code.problems),
    )
    plan = resolve_images(workspace, make_plan(inputs), offline=True)
    with unconfined():  # rules are the user's, and are evaluated in a process of their own
        return with_policies(workspace, plan)


def _survey_weights(
    workspace: Workspace, parallelism: int
) -> tuple[dict[Address, WeightsFacts], list[Diagnostic]]:
    """Resolve public sources without credentials; report the others as unknown."""
    locked = LockFile(workspace.settings.directory).entries()
    requests = workspace.source_requests

    def inspect(address: Address) -> tuple[WeightsFacts | None, list[Diagnostic]]:
        request, resource = requests[address], workspace.desired.resources[address]
        entry = locked.get(request.key)
        try:
            _require_public(request)
            found = resolve(request, locked=entry, retry=_RETRY)
        except TrainctlError as failure:
            problem = of_error(failure, str(address), resource.where)
            return None, [replace(problem, severity=Severity.WARNING, forbids=False)]
        notes = [replace(item, address=str(address)) for item in found.warnings]
        is_locked = entry is not None
        return WeightsFacts(
            found.resolved, None, locked=is_locked, unmatched_patterns=found.unmatched
        ), notes

    with ThreadPoolExecutor(parallelism, thread_name_prefix="resolve") as pool:
        results = dict(zip(requests, pool.map(inspect, requests), strict=True))
    facts = {address: found for address, (found, _) in results.items() if found}
    return facts, [problem for _, problems in results.values() for problem in problems]


def _require_public(request: SourceRequest) -> None:
    """Raise PermissionDenied for a source with a credential or server, or outside the directory."""
    if request.weights.auth:
        reason = "it names a credential or a server"
    elif request.uri.is_local and not (
        Path(request.uri.location).resolve().is_relative_to(request.directory.resolve())
    ):
        reason = "it is outside the directory of the manifest"
    else:
        return
    summary = f"{request.source} is not inspected for an untrusted plan: {reason}"
    raise PermissionDenied(summary, code="untrusted-path")

"""Inputs of the planner, and the state after a plan was applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.desired.values import DesiredState
from trainctl.ledger.state import Intent, LeaseHolder, RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.diagnostics import Position
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.resource import DesiredResource
from trainctl.plan.values import (
    Change,
    CodeTree,
    NodeFacts,
    Plan,
    PlanInputs,
    PlanOptions,
    TierFacts,
    WeightsFacts,
)
from trainctl.plugin_api.provider import Node

HOLDER = LeaseHolder("machine", "boot", 1, 2, "ana@laptop")
COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
CODE = CodeTree("sha256:" + "5e" * 32, 12, 34_100)
EMPTY = State()
LINEAGE = "7d3c0a52-5d4f-4c53-9c52-0a3b1f5b8a10"


NODE = NodeFacts(
    "lab/lab-0",
    {
        "serving": {"tls": False, "why": "", "loopback": ""},
        "python": "3.12.1",
        "cpus": 0,
        "memory": 0,
        "unusable": "",
        "disk_free": 10**12,
        "mount": "namespace",
        "logout": {"survives": True, "why": "", "fix": ""},
        "hosts": [],
        "absent": [],
        "gpus": [],
        "gpus_problem": None,
        "images": [],
        "cached": None,
        "free_resources": None,
        "blocked": [],
    },
    {"root": "/data"},
)


def with_facts(node: NodeFacts, **more: Any) -> NodeFacts:
    """The node with these facts; keys of its own report replace those in the report."""
    names = more.keys() - NodeFacts.__dataclass_fields__
    own: Any = {name: more.pop(name) for name in names}
    return replace(node, reported={**node.reported, **own}, **more)


def at(text: str) -> Address:
    return Address.parse(text)


def resource(
    address: str,
    attributes: Mapping[str, Any],
    *depends_on: str,
    provider: str = "trainctl",
    lifecycle: JobLifecycle = JobLifecycle(),
) -> DesiredResource:
    """A resource with a place in a manifest."""
    needs = tuple(at(item) for item in depends_on)
    return DesiredResource(
        at(address), provider, attributes, needs, lifecycle, Position("trainctl.yaml", 7, 3)
    )


def source_of(uri: str, *sizes: int, revision: str = COMMIT) -> ResolvedSource:
    """A source with files of these sizes."""
    files = tuple(
        SourceFile(f"part-{index}.bin", size, f"sha256:{index:064x}")
        for index, size in enumerate(sizes)
    )
    return ResolvedSource(uri, revision, files)


RESOLVED = source_of("hf://Qwen/Qwen3-0.6B@main", 1_503_300_328, 11_422_654, 9_732, 726)


@dataclass
class PlanScenario:
    """A manifest of one project, cluster, weights and job, with facts about them."""

    job: dict[str, Any] = field(
        default_factory=lambda: {
            "project": "demo",
            "cluster": "lab",
            "image": None,
            "compute": {"node_count": 1, "accelerator": None},
            "runtime": {
                "start_commands": ["python train.py --lr 1e-4"],
                "environment_variables": {},
            },
            "weights": [
                {
                    "address": "weights.qwen3",
                    "mount_location": "/app/models/qwen3",
                    "source": "hf://Qwen/Qwen3-0.6B@main",
                    "allow_patterns": [],
                    "ignore_patterns": [],
                }
            ],
            "mounts": [],
            "secrets": [],
            "priority": 0,
            "labels": {},
            "code": "src",
        }
    )
    job_lifecycle: JobLifecycle = JobLifecycle()
    cluster: dict[str, Any] = field(
        default_factory=lambda: {"provider": "local", "nodes": 1, "gpus": 0}
    )
    resolved: ResolvedSource = RESOLVED
    mirrored: int = 0
    on_node: int = 0
    mount: str = "namespace"
    code: CodeTree = CODE

    def resources(self) -> list[DesiredResource]:
        weights: dict[str, Any] = {
            "source": self.resolved.source,
            "mount_location": "/app/models/qwen3",
            "auth": None,
            "allow_patterns": [],
            "ignore_patterns": [],
        }
        project: dict[str, Any] = {"name": "demo", "description": None, "labels": {}}
        needs = ("project.demo", "cluster.lab", "weights.qwen3")
        return [
            resource("project.demo", project),
            resource("cluster.lab", self.cluster, provider=str(self.cluster["provider"])),
            resource("weights.qwen3", weights),
            resource("job.sft", self.job, *needs, lifecycle=self.job_lifecycle),
        ]

    def inputs(
        self, state: State = EMPTY, options: PlanOptions = PlanOptions(), **more: Any
    ) -> PlanInputs:
        size = self.resolved.size
        upstream = size - self.mirrored
        tiers = TierFacts(self.on_node, 0, size - self.on_node - upstream, upstream)
        if self.on_node == size:
            tiers = TierFacts(node=size)
        weights, rates = at("weights.qwen3"), {"upstream": 5e7, "mirror": 1e9}
        node = with_facts(NODE, mount=self.mount, tiers={weights: tiers}, rates=rates)
        values: dict[str, Any] = {
            "desired": desired(*self.resources()),
            "code": {at("job.sft"): self.code},
            "weights": {weights: WeightsFacts(self.resolved, self.mirrored, locked=True)},
            "nodes": {at("cluster.lab"): (node,)},
            "planned_nodes": {at("cluster.lab"): (Node("lab", "lab-0"),)},
        }
        return PlanInputs(state=state, options=options, **{**values, **more})


def desired(*resources: DesiredResource) -> DesiredState:
    return DesiredState(
        Path("/home/ana/demo"),
        {resource.address: resource for resource in resources},
        {},
        manifest_digest="sha256:" + "ab" * 32,
    )


def run_record(number: int, status: RunStatus, **more: Any) -> RunRecord:
    """One run of a job, on the first node."""
    ranks = (RankRecord(0, "lab/lab-0", status),)
    return RunRecord(f"run{number:04}", number, f"key-{number}", status=status, ranks=ranks, **more)


def state_after(
    plan: Plan, state: State = EMPTY, status: RunStatus = RunStatus.COMPLETED, **of_run: Any
) -> State:
    """The state after every change was made; new runs have that status."""
    resources, versions = dict(state.resources), dict(state.versions)
    for change in plan.changes:
        if change.action is Action.NOOP:
            continue
        versions[change.address] = version = versions.get(change.address, 0) + 1
        if change.after is None:
            resources.pop(change.address, None)
            continue
        earlier = resources.get(change.address)
        resources[change.address] = RecordedResource(
            change.address,
            change.provider,
            change.after,
            _outputs(change, earlier, status, of_run),
            change.depends_on,
            change.lifecycle,
            version,
        )
    return replace(
        state,
        lineage=state.lineage or LINEAGE,
        serial=state.serial + 1,
        resources=resources,
        versions=versions,
        open_intents={},
        orphaned_intents={},
    )


def _outputs(
    change: Change, earlier: RecordedResource | None, status: RunStatus, of_run: dict[str, Any]
) -> dict[str, Any]:
    outputs = dict(earlier.outputs) if earlier else {}
    kind = change.address.kind
    if kind == "cluster":
        return {"nodes": [{"name": f"{change.address.name}-0", "cluster": change.address.name}]}
    if kind == "job" and "runs" in change.after_unknown:
        runs = list(outputs.get("runs", ()))
        return {"runs": [*runs, run_record(len(runs) + 1, status, **of_run).to_json()]}
    if kind == "weights":
        return {"listing": "ab" * 32, "mirror": "file:///mirror"}
    return {"directory": "/caches/demo"} if kind == "cache" else outputs


def intent_of(change: Change, key: str = "interrupted-key") -> Intent:
    """The intent of this change that a killed apply leaves."""
    needs = [*map(str, change.depends_on)]
    inputs = {"cluster": "lab", "attributes": change.after, "depends_on": needs}
    action = change.action.name.lower()
    return Intent("entry", change.address, action, change.provider, key, inputs, HOLDER, 0.0)


def change_of(plan: Plan, address: str) -> Change:
    return next(change for change in plan.changes if change.address == at(address))


def errors(plan: Plan) -> list[str]:
    return [problem.summary for problem in plan.diagnostics if problem.severity.value == "error"]

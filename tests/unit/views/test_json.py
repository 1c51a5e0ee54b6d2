"""Machine-readable forms: real output against the published schemas, and what the plan's form promises."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.projects.plans import (
    HOLDER,
    PlanScenario,
    at,
    change_of,
    desired,
    intent_of,
    resource,
    run_record,
    state_after,
)
from trainctl.base.protocol.weights import CachedListing
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.history import HistoryRow
from trainctl.model.action import ActionReason
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.diagnostics import Position, error
from trainctl.model.reports import CacheReport, Checkpoint, JobStatus, UnreachableNode
from trainctl.model.run import RunStatus
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Observation, Plan, PlanOptions, WeightsFacts
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.store.gc import GcReport, RemovedListing
from trainctl.store.references import StoredReference
from trainctl.store.survey import InventoryRow as MirrorRow
from trainctl.store.survey import MirrorInventory
from trainctl.store.verify import Finding, FindingOutcome, VerifyReport
from trainctl.views.caches import EVICT_COLUMNS, VERIFY_COLUMNS, listings_json
from trainctl.views.mirror import gc_json, mirror_json, mirror_verify_json
from trainctl.views.plan.json import plan_json
from trainctl.views.runs.checkpoints import checkpoints_json
from trainctl.views.runs.status import status_json
from trainctl.views.state import history_json, resource_json
from trainctl_schemas import schema


def closed(value: Any) -> Any:
    """A schema that refuses what it doesn't name: what we print must be published, readers may be lenient."""
    if isinstance(value, dict):
        copied = {key: closed(item) for key, item in value.items()}
        if value.get("properties"):
            copied["additionalProperties"] = False
        return copied
    return [closed(item) for item in value] if isinstance(value, list) else value


def problems(name: str, value: Any) -> list[str]:
    """Errors of a form against its schema, after a round trip through text."""
    document = json.loads(json.dumps(value))
    errors = Draft202012Validator(closed(schema(name))).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def plans() -> Iterator[Plan]:
    """Plans that between them fill every field of the form, with every kind of change."""
    world = PlanScenario()
    first = make_plan(world.inputs())
    yield first
    yield make_plan(world.inputs(weights={at("weights.qwen3"): WeightsFacts(None)}, nodes={}))
    live = state_after(first, status=RunStatus.RUNNING, started_at=1.5)
    yield make_plan(world.inputs(live, PlanOptions(destroy=True)))
    gone = {at("weights.qwen3"): Observation(ResourceStatus.MISSING, detail="no listing")}
    yield make_plan(world.inputs(live, observed=gone))
    changed = copy.deepcopy(world)
    changed.job["runtime"]["start_commands"] = ["python other.py"]
    changed.mount = "link"
    yield make_plan(changed.inputs(live))
    rest = changed.inputs(state_after(first)).desired
    less = replace(rest, resources={at("project.demo"): rest.resources[at("project.demo")]})
    yield make_plan(changed.inputs(state_after(first), desired=less))
    sweep = resource('job.sweep["lr=1e-5"]', world.job, "cluster.lab")
    yield make_plan(world.inputs(desired=desired(*world.resources(), sweep)))


def test_plans_match_their_schema() -> None:
    """Every plan that is printed is what the schema says, and nothing besides. Unknown values are in ``after_unknown`` alone."""
    forms = [plan_json(plan) for plan in plans()]
    assert [problems("plan", form) for form in forms] == [[]] * len(forms)
    (sweep,) = (item for item in forms[-1]["resource_changes"] if item["index"])
    assert (sweep["name"], sweep["index"]) == ("sweep", "lr=1e-5")
    delivery, weights = forms[0]["deliveries"][0], forms[0]["weights"][0]
    assert sum(delivery["bytes_by_tier"].values()) == weights["bytes"]
    source, job = (item["change"] for item in forms[1]["resource_changes"][2:])
    assert source["after_unknown"]["pin"] is job["after_unknown"]["runs"] is True
    assert "pin" not in source["after"]


def test_states_match_their_schema() -> None:
    """With records, an open intent and a failed attempt."""
    first = make_plan(PlanScenario().inputs())
    intent = intent_of(change_of(first, "job.sft"))
    state = replace(
        state_after(first),
        open_intents={intent.address: intent},
        orphaned_intents={intent.address: (intent,)},
        plans={intent.address: (first.digest, 0)},
    )
    assert problems("state", state_to_json(state)) == []
    assert resource_json(state.resources[at("job.sft")]) in state_to_json(state)["resources"]


def listings() -> Iterator[tuple[str, Any]]:
    """Other forms, by the names of their schemas; what can be null is null in some and not in others."""
    where = Position("a.yaml", 3, 4)
    wrong = error("wrong", code="invalid-value")
    placed = replace(wrong, detail="Write it right.", address="job.sft", where=where)
    yield "validate", {"valid": False, "diagnostics": [wrong.to_json(), placed.to_json()]}

    delivered = DeliveryRecord(
        0, "lab/lab-0", "weights.w", "peers", 2.0, {"mirror": 5, "peers": 5}, 1.5
    )
    actor, missing = HOLDER.actor, ActionReason.MISSING.value
    rows = [
        HistoryRow(1, 0.0, actor, "job.sft", "create", None, "abcdefg", "completed", (delivered,)),
        HistoryRow(1, 5.5, actor, None, "comment", missing, None, "commented"),
    ]
    yield "history", history_json(rows)

    checkpoint = Checkpoint(
        "checkpoint-5", "abcdefg", 0, 5, 12, 1, "complete", 6.0, "file:///c", type="lora"
    )
    unreachable = UnreachableNode("lab/gpu-1", (1,), "lab/gpu-1 doesn't answer")
    run = replace(run_record(1, RunStatus.RUNNING, started_at=2.0), phases={"delivering": 0.5})
    status = status_json(JobStatus(at("job.sft"), run, (checkpoint,)))
    yield "status", status
    yield "status", {"jobs": [status], "pending_jobs": ["job.next"], "leases": []}
    yield "checkpoints", checkpoints_json((checkpoint,), (unreachable,))

    source = MirrorRow("file:./w", "mtime", None, 1, 2, 0, 2, 0, 3.0, ("demo",), ("ann@laptop",))
    yield "mirror", mirror_json(MirrorInventory((source,)))
    names = dict.fromkeys(("source", "revision", "project", "owner", "address", "lineage"), "x")
    reference = StoredReference(
        "references/x", {**names, "listing": None, "files": 1, "bytes": 2}, 1.5
    )
    finding = Finding("blobs/x", "changed", 5, ("file:x",), FindingOutcome.REMOVED, "gone")
    yield "mirror-verify", mirror_verify_json(VerifyReport(1, 2, (finding,)))
    removed = RemovedListing("0" * 64, 1, 2)
    yield "mirror-gc", gc_json(GcReport(False, 1, 2, (removed,), *[(reference,)] * 3))

    row: CachedListing = {"id": "0" * 64, "source": "", "bytes": 0, "last_used": None, "files": 0}
    evicted: CachedListing = {**row, "outcome": "busy", "leased_by": ["job.a run 1"]}
    report = CacheReport((("lab/n", evicted),), 5)
    yield "cache-evict", listings_json(report, EVICT_COLUMNS, dry_run=True)
    corrupt: CachedListing = {**row, "outcome": "corrupt", "corrupt_files": ["x"], "detail": "why"}
    report = CacheReport((("lab/n", corrupt),), 5, 6)
    yield "cache-verify", listings_json(report, VERIFY_COLUMNS, bytes=6)


def test_other_forms_match_their_schemas() -> None:
    forms = list(listings())
    assert [(name, wrong) for name, form in forms if (wrong := problems(name, form))] == []
    assert dict(forms)["history"]["entries"][1]["time"] == "1970-01-01T00:00:05.500Z"

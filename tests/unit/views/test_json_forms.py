"""Machine-readable forms: real output against the published schemas, and what the plan's form promises."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.projects.plans import (
    HOLDER,
    PlanScenario,
    at,
    change_of,
    intent_of,
    run_record,
    state_after,
)
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.history import HistoryRow
from trainctl.model.action import ActionReason
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.diagnostics import Position, error
from trainctl.model.reports import (
    CachedListingReport,
    CacheReport,
    Checkpoint,
    JobStatus,
    UnreachableNode,
)
from trainctl.model.run import RunStatus
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Observation, Plan, PlanOptions, WeightsFacts
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.store.maintenance.gc import GcReport, RemovedListing
from trainctl.store.maintenance.inventory import InventoryRow as MirrorRow
from trainctl.store.maintenance.inventory import MirrorInventory
from trainctl.store.maintenance.verify import Finding, FindingOutcome, VerifyReport
from trainctl.store.references import StoredReference
from trainctl.views.caches import evict_json, verify_json
from trainctl.views.jobs.checkpoints import checkpoints_json
from trainctl.views.jobs.status import status_json
from trainctl.views.mirror import gc_json, mirror_json, mirror_verify_json
from trainctl.views.plan.json import plan_json
from trainctl.views.state import history_json, resource_json
from trainctl_schemas import schema


def closed(value: Any) -> Any:
    """A schema that refuses what it doesn't name: what we print must be published, readers may be lenient."""
    if isinstance(value, dict):
        found = {key: closed(one) for key, one in value.items()}
        if value.get("properties"):
            found["additionalProperties"] = False
        return found
    return [closed(one) for one in value] if isinstance(value, list) else value


def problems(name: str, value: Any) -> list[str]:
    """What a real form has against its schema, after a round trip through text."""
    document = json.loads(json.dumps(value))
    found = Draft202012Validator(closed(schema(name))).iter_errors(document)
    return [f"{one.json_path}: {one.message}" for one in found]


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


@pytest.mark.parametrize("index", range(6))
def test_plans_hold_against_their_schema(index: int) -> None:
    """Every plan that we print is what the schema says, and nothing besides."""
    assert problems("plan", plan_json(list(plans())[index])) == []


def test_a_replacement_counts_twice() -> None:
    """A replacement is in add, in destroy and in replace."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    summary = plan_json(make_plan(world.inputs(state, PlanOptions(run=(at("job.sft"),)))))[
        "summary"
    ]

    assert summary == {
        "add": 1,
        "change": 0,
        "destroy": 1,
        "replace": 1,
        "forget": 0,
        "move": 0,
        "imports": 0,
        "reuse": 0,
    }


def test_no_ops_are_listed_with_their_outputs() -> None:
    """A plan without changes lists every resource, with outputs on both sides."""
    world = PlanScenario()
    form = plan_json(make_plan(world.inputs(state_after(make_plan(world.inputs())))))

    assert len(form["resource_changes"]) == 4
    for item in form["resource_changes"]:
        assert item["change"]["actions"] == ["no-op"]
        assert item["change"]["before"] == item["change"]["after"]
    assert form["resource_changes"][3]["change"]["before"]["runs"][0]["number"] == 1
    assert (form["applyable"], form["complete"], form["errored"]) == (False, True, False)


def test_what_is_unknown_is_not_in_after() -> None:
    """Unknown values are left out of after and are true in after_unknown."""
    facts = {at("weights.qwen3"): WeightsFacts(None)}
    form = plan_json(make_plan(PlanScenario().inputs(weights=facts)))

    change = form["resource_changes"][2]["change"]

    assert change["after_unknown"]["pin"] is True
    assert "pin" not in change["after"]
    assert form["resource_changes"][3]["change"]["after_unknown"]["runs"] is True


def test_bytes_by_tier_sum_to_the_size() -> None:
    """The tiers of a delivery add up to the size of its weights."""
    form = plan_json(make_plan(PlanScenario(mirrored=5).inputs()))

    assert sum(form["deliveries"][0]["bytes_by_tier"].values()) == form["weights"][0]["bytes"]


def test_a_matrix_job_has_its_index() -> None:
    """The key of one of many is in index, its address quoted."""
    from tests.support.projects.plans import desired, resource

    world = PlanScenario()
    job = resource('job.sweep["lr=1e-5"]', world.job, "cluster.lab")
    form = plan_json(make_plan(world.inputs(desired=desired(*world.resources(), job))))

    item = next(one for one in form["resource_changes"] if one["index"])

    assert (item["name"], item["index"]) == ("sweep", "lr=1e-5")
    assert problems("plan", form) == []


def test_validate_holds_against_its_schema() -> None:
    """Diagnostics with and without a place are what the schema says."""
    found = [
        error(
            "wrong",
            "Write it right.",
            address="job.sft",
            code="invalid-value",
            where=Position("a.yaml", 3, 4),
        ),
        error("wrong", code="invalid-value"),
    ]

    form = {"valid": False, "diagnostics": [one.to_json() for one in found]}

    assert problems("validate", form) == []


def test_states_hold_against_their_schema() -> None:
    """A state with records, an open intent and a failed attempt is what the schema says."""
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


DELIVERED = DeliveryRecord(
    0, "lab/lab-0", "weights.w", "peers", 2.0, {"mirror": 5, "peers": 5}, 1.5
)


def test_history_holds_against_its_schema() -> None:
    """Rows with and without an address are what the schema says; times are RFC 3339."""
    rows = [
        HistoryRow(
            1, 0.0, HOLDER.actor, "job.sft", "create", None, "abcdefg", "completed", (DELIVERED,)
        ),
        HistoryRow(
            1, 5.5, HOLDER.actor, None, "comment", ActionReason.MISSING.value, None, "commented"
        ),
    ]

    form = history_json(rows)

    assert problems("history", form) == []
    assert form["entries"][1]["time"] == "1970-01-01T00:00:05.500Z"


def test_the_other_listings_hold_against_their_schemas() -> None:
    """status, checkpoints and mirror list are what their schemas say."""
    checkpoint = Checkpoint(
        "checkpoint-5", "abcdefg", 0, 5, 12, 1, "complete", 6.0, "file:///c", type="lora"
    )
    unreachable = UnreachableNode("lab/gpu-1", (1,), "lab/gpu-1 doesn't answer")
    run = replace(run_record(1, RunStatus.RUNNING, started_at=2.0), phases={"delivering": 0.5})
    status = JobStatus(at("job.sft"), run, (checkpoint,))
    source = MirrorRow("file:./w", "mtime", None, 1, 2, 0, 2, 0, 3.0, ("demo",), ("ann@laptop",))

    assert problems("status", status_json(status)) == []
    jobs = {"jobs": [status_json(status)], "pending_jobs": ["job.next"], "leases": []}
    assert problems("status", jobs) == []
    assert problems("checkpoints", checkpoints_json((checkpoint,), (unreachable,))) == []
    assert problems("mirror", mirror_json(MirrorInventory((source,)))) == []


def test_care_of_caches_and_mirror_holds_against_its_schemas() -> None:
    """With everything that can be null null, and with everything that can be there."""
    row = CachedListingReport(
        "lab/n", "0" * 64, "", 0, 0, "busy", None, ("job.a run 1",), ("x",), "why"
    )
    reference = StoredReference(
        "references/x",
        {
            **dict.fromkeys(("source", "revision", "project", "owner", "address", "lineage"), "x"),
            "listing": None,
            "files": 1,
            "bytes": 2,
        },
        1.5,
    )
    finding = Finding("blobs/x", "changed", 5, ("file:x",), FindingOutcome.REMOVED, "gone")
    collected = GcReport(
        False, 1, 2, (RemovedListing("0" * 64, 1, 2),), (reference,), (reference,), (reference,)
    )

    assert problems("cache-evict", evict_json(CacheReport((row,), 5), dry_run=True)) == []
    verified = CacheReport((replace(row, outcome="corrupt"),), 5, 6)
    assert problems("cache-verify", verify_json(verified)) == []
    assert problems("mirror-verify", mirror_verify_json(VerifyReport(1, 2, (finding,)))) == []
    assert problems("mirror-gc", gc_json(collected)) == []

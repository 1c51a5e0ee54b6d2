"""Limits that every plan must keep, on the JSON of plans."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.model.json_codec import from_json, to_json
from trainctl.model.trust import PlanPolicy, PolicyLevel, PolicyResult, PolicyWaiver
from trainctl.operations.policies import check_policies, evaluate_rules, policy_problems
from trainctl.plan.changes import policies_digest
from trainctl.plan.policies import LIMITS, UnknownFact, limit_violations

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def change(address: str, *actions: str, provider: str = "local", **after: Any) -> dict[str, Any]:
    values = None if actions == ("delete",) else after
    kind = address.partition(".")[0]
    done = {"actions": list(actions) or ["create"], "after": values}
    return {"address": address, "type": kind, "provider_name": provider, "change": done}


def form(*changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"runs": [], "weights": [], "lost_checkpoints": [], "usage": None}
    return {**empty, "cost": {"hourly": 0.0}, "resource_changes": list(changes), **more}


def run(**facts: Any) -> dict[str, Any]:
    unknown: dict[str, Any] = {"job": "job.a", "gpus": None, "seconds": [], "max_seconds": None}
    return {**unknown, **facts}


def violations(plan: dict[str, Any], **limits: Any) -> list[str]:
    violations = limit_violations(PlanPolicy("here", **limits), plan)
    return [f"{problem.address}: {problem.summary} ({problem.allowed})" for problem in violations]


@pytest.mark.parametrize(("pattern", "sources"), by_text("plan/policy_sources"))
def test_sources_match_patterns(pattern: str, sources: dict[str, bool]) -> None:
    """Paths are compared without their ``..``."""
    for source, kept in sources.items():
        plan = form(change("weights.w", source=source))
        assert (violations(plan, sources=(pattern,)) == []) is kept, source


def test_a_provider_and_a_region_are_a_clusters() -> None:
    """A cluster without a region is in none; deleted clusters don't count."""
    limits: dict[str, Any] = {"providers": ("ssh", "aws"), "regions": ("eu-*",)}
    assert violations(form(change("cluster.c", provider="ssh")), **limits) == []
    assert violations(form(change("cluster.c", provider="aws", region="eu-west-1")), **limits) == []
    assert violations(form(change("cluster.c", "delete", provider="slurm")), **limits) == []
    assert violations(
        form(change("cluster.c", provider="slurm", region="us-west-2")), **limits
    ) == [
        "cluster.c: the provider 'slurm' is not allowed (ssh or aws)",
        "cluster.c: the region 'us-west-2' is not allowed (eu-*)",
    ]


def test_numbers_are_limits_of_the_plan() -> None:
    """The limit itself is within it; usage and plan count together."""
    runs = [run(gpus=8, seconds=[3600, 7200]), run(gpus=4, seconds=[900], max_seconds=21600.0)]
    weights = [{"address": "weights.w", "bytes_upstream": 2 * 10**9}]
    plan = form(cost={"hourly": 10.01}, runs=runs, weights=weights, usage={"gpu_hours": 60.0})
    kept = {"max_hourly_cost": 10.01, "max_gpus": 12, "max_gpu_hours": 40}
    assert violations(plan, **kept, max_monthly_gpu_hours=100, max_upstream_bytes=2 * 10**9) == []
    less = {"max_hourly_cost": 10.0, "max_gpus": 11.0, "max_gpu_hours": 39.5}
    assert violations(plan, **less, max_monthly_gpu_hours=99, max_upstream_bytes=10**9) == [
        "None: the plan costs 10.01 per hour (at most 10.00)",
        "None: the plan starts runs on 12 GPUs (at most 11)",
        "None: the plan uses up to 40.0 GPU hours (at most 39.5)",
        "None: the last 30 days and the plan use up to 100.0 GPU hours (at most 99.0)",
        "None: the plan downloads 2.0 GB from upstream (at most 1.0 GB)",
    ]
    assert violations(plan) == []
    assert violations(form(runs=[run(gpus=0)]), max_gpu_hours=0, max_gpus=0) == []
    assert len(violations(plan, max_gpus=0, max_hourly_cost=0.0, max_upstream_bytes=0)) == 3


@pytest.mark.parametrize(
    ("limit", "facts"),
    [
        ({"max_gpus": 8}, {"runs": [run()]}),
        ({"max_gpu_hours": 8}, {"runs": [run(gpus=1)]}),
        ({"max_monthly_gpu_hours": 8}, {}),
        ({"max_upstream_bytes": 8}, {"weights": [{"address": "w", "bytes_upstream": None}]}),
    ],
)
def test_an_unknown_fact_is_no_pass(limit: dict[str, Any], facts: dict[str, Any]) -> None:
    with pytest.raises(UnknownFact, match=r"unknown$"):
        violations(form(**facts), **limit)


def test_images_by_name_and_registry() -> None:
    images = ["python:3.11", "acme/train", "ghcr.io/acme/x", "localhost/x", "reg:5000/acme/x"]
    plan = form(*(change(f"job.{n}", image={"base_image": i}) for n, i in enumerate(images)))
    for limit, refused in (
        ({"registries": ("docker.io",)}, ["job.2", "job.3", "job.4"]),
        ({"images": ("acme/*", "ghcr.io/acme/*")}, ["job.0", "job.3", "job.4"]),
    ):
        assert [text.partition(":")[0] for text in violations(plan, **limit)] == refused


def test_commits_digests_and_files_of_the_project_are_pins() -> None:
    pinned = [
        change("weights.a", source=f"hf://acme/a@{COMMIT}"),
        change("weights.b", source="https://x/y", sha256="a" * 64),
        change("weights.c", source="file:data"),
        change("job.a", image={"base_image": f"acme/a@sha256:{'a' * 64}"}),
    ]
    loose = [
        change("weights.d", source="hf://acme/a@main"),
        change("weights.e", source="file:../data"),
        change("job.b", image={"base_image": "acme/a:1"}),
    ]
    assert violations(form(*pinned), require_pins=True) == []
    addresses = [
        item.partition(":")[0] for item in violations(form(*pinned, *loose), require_pins=True)
    ]
    assert addresses == ["weights.d", "weights.e", "job.b"]


def test_resources_and_checkpoints_are_not_destroyed() -> None:
    plan = form(
        change("weights.a", "delete"),
        change("cluster.prod-1", "delete", "create"),
        change("cluster.test", "delete"),
        lost_checkpoints=[{"job": "job.a", "checkpoints": "checkpoint-10 of run 3"}],
    )
    assert violations(
        plan, forbid_destroy=("weights.*", "cluster.prod*"), keep_checkpoints=True
    ) == [
        "weights.a: the plan destroys or replaces it (no destruction of weights.* or cluster.prod*)",
        "cluster.prod-1: the plan destroys or replaces it (no destruction of weights.* or cluster.prod*)",
        "job.a: the plan deletes the only copy of checkpoints: checkpoint-10 of run 3 (checkpoints with another copy)",
    ]


RULES = {
    "plan.cost.hourly < 5": "passed",
    "plan.resource_changes.all(c, !('delete' in c.change.actions))": "failed",
    "plan.nothing == 1": "error",
    "plan.cost.hourly": "error",
    "1 +": "error",
    "unknown(plan)": "error",
    "open('/etc/passwd')": "error",
}


def test_rules_that_are_not_true_forbid_unless_advisory(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = partial(evaluate_rules, seconds=300)
    monkeypatch.setattr("trainctl.operations.policies.evaluate_rules", patient)
    rules = [
        PlanPolicy("here", "ours", rule=text, level=level)
        for level in (PolicyLevel.ADVISORY, PolicyLevel.MANDATORY)
        for text in RULES
    ]
    results = check_policies(rules, form(change("job.a", "delete")))
    assert [result.status for result in results] == [*RULES.values()] * 2
    assert [result.forbids for result in results] == [False] * (len(RULES) + 1) + [True] * 6
    codes = [item.code for result in results[len(RULES) :] for item in policy_problems(result)]
    assert codes == ["policy", *["policy-error"] * 5]


def test_rules_end_in_time() -> None:
    """An endless rule is an error, and so are those after it."""
    endless = "l.all(a, l.all(a, l.all(a, l.all(a, l.all(a, true)))))".replace("l.", "plan.runs.")
    answers = evaluate_rules([endless, "true"], form(runs=[run()] * 300), seconds=0.5)
    assert answers == ["not evaluated within 0.5 seconds"] * 2


def test_a_waiver_lasts_until_its_day() -> None:
    old, last = PolicyWaiver("2020-01-01", "x"), PolicyWaiver("9999-01-01", "final run")
    strict = PlanPolicy("here", "gpus", max_gpus=1, waiver=old)
    plan = form(runs=[run(gpus=2)])
    (expired,) = check_policies([strict], plan)
    assert (expired.status, expired.forbids, expired.waiver) == ("failed", True, None)
    (waived,) = check_policies([replace(strict, waiver=last)], plan)
    assert (waived.status, waived.forbids, waived.waiver) == ("waived", False, last)
    (problem,) = policy_problems(waived)
    assert problem.detail == "Policy 'gpus' at here: waived until 9999-01-01: final run."
    (kept,) = check_policies([replace(strict, waiver=last)], form())
    assert (kept.status, kept.waiver) == ("passed", None)
    assert from_json(PolicyResult, to_json(waived)) == waived


def test_the_digest_covers_mandatory_policies() -> None:
    """As a set, without position and waiver."""
    policy, other = PlanPolicy("a", max_gpus=1), PlanPolicy("b", rule="true")
    advice = PlanPolicy("c", max_gpus=9, level=PolicyLevel.ADVISORY)
    waiver = PolicyWaiver("2030-01-01", "x")
    same = [other, replace(policy, where="z", waiver=waiver), policy, advice]
    assert policies_digest([policy, other]) == policies_digest(same)
    assert policies_digest([policy]) != policies_digest([replace(policy, max_gpus=2)])
    assert policies_digest([advice]) == policies_digest([]) == ""


def test_every_key_of_a_policy_is_checked() -> None:
    """A limit without a check would be ignored."""
    others = {"where", "name", "level", "message", "rule", "waiver"}
    assert {*PlanPolicy.__dataclass_fields__} == {*LIMITS} | others

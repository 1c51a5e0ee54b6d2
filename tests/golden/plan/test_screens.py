"""What people see of a plan, word for word. Refresh with ``pytest --snapshot-update`` and read the difference."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import Screen, text
from tests.support.projects.html_pages import page_text
from tests.support.projects.plans import (
    PlanScenario,
    at,
    desired,
    resource,
    run_record,
    state_after,
)
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.run import RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.trust import PlanPolicy, PolicyWaiver
from trainctl.operations.policies import check_policies
from trainctl.plan.planner import make_plan
from trainctl.plan.values import CodeTree, Observation, Plan, PlanInputs, PlanOptions, WeightsFacts
from trainctl.plugin_api.provider import Node, ResourceStatus
from trainctl.views.plan.html import plan_html
from trainctl.views.plan.json import plan_json
from trainctl.views.plan.pages import HTML_MARK, LIMIT, plan_markdown
from trainctl.views.plan.text import plan_text
from trainctl.views.problems import diagnostic_lines

NOW = 1_900_000_000.0


class Comment(Screen):
    """One Markdown file for each comment."""

    file_extension = "md"


class Body(Screen):
    """One HTML file for each page, without its head."""

    file_extension = "html"


def first_apply() -> Plan:
    """Everything is new; the code left something out; nothing is pinned yet."""
    world = PlanScenario(
        code=CodeTree("sha256:" + "5e" * 32, 12, 34_100, (".venv", "data\x1b[31m"))
    )
    facts = {at("weights.qwen3"): WeightsFacts(world.resolved, 0)}
    return make_plan(world.inputs(weights=facts))


def settled(status: RunStatus = RunStatus.COMPLETED) -> tuple[PlanScenario, State]:
    """A world after its first apply, with everything mirrored and delivered."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()), status=status, started_at=NOW - 187_300)
    world.mirrored = world.on_node = world.resolved.size
    return world, state


def no_changes() -> Plan:
    world, state = settled()
    return make_plan(world.inputs(state))


def changed_rate() -> Plan:
    """Another learning rate in a command that is too long for one line, and a second node."""
    world, state = settled()
    command = "torchrun --nnodes $BT_GROUP_SIZE --node-rank $BT_NODE_RANK train.py --lr"
    world.job["runtime"] = {"start_commands": [f"{command} 1e-4"], "environment_variables": {}}
    state = state_after(make_plan(world.inputs(state)), state)
    secret = {"WANDB_API_KEY": {"secret": "wandb"}}
    runtime = {"start_commands": [f"{command} 2e-4"], "environment_variables": secret}
    world.job = {**world.job, "runtime": runtime, "labels": {"team": "nlp"}}
    return make_plan(world.inputs(state))


def live_run_stop() -> Plan:
    """A change of a job that trains at the moment on sixteen GPUs, which also cost money."""
    world = PlanScenario()
    world.cluster["price_per_hour"] = 12
    world.job["compute"] = {"node_count": 2, "accelerator": "H100:8"}
    both = {at("cluster.lab"): (Node("lab", "lab-0"), Node("lab", "lab-1"))}
    state = state_after(make_plan(world.inputs(planned_nodes=both)))
    run = run_record(7, RunStatus.RUNNING, started_at=NOW - 187_300)
    run = replace(run, ranks=(run.ranks[0], replace(run.ranks[0], rank=1, node="lab/lab-1")))
    job = replace(state.resources[at("job.sft")], outputs={"runs": [run.to_json()]})
    state = replace(state, resources={**state.resources, at("job.sft"): job})
    world.job["compute"] = {"node_count": 2, "accelerator": "H100:4"}
    inputs = world.inputs(state, planned_nodes=both)
    (first,) = inputs.nodes[at("cluster.lab")]
    facts = (first, replace(first, id="lab/lab-1"))
    return make_plan(replace(inputs, nodes={at("cluster.lab"): facts}))


def destroyed() -> Plan:
    """Everything goes, with a training cache and a live run."""
    world, state = settled(RunStatus.RUNNING)
    cache = resource(
        "cache.demo-lab", {"project": "demo", "cluster": "lab"}, "project.demo", "cluster.lab"
    )
    wish = desired(*world.resources(), cache)
    state = state_after(make_plan(world.inputs(state, desired=wish)), state, RunStatus.RUNNING)
    return make_plan(world.inputs(state, PlanOptions(destroy=True), desired=wish))


def errors() -> Plan:
    """A mount that can't be made, a protected project that would go, a misspelt target."""
    world, state = settled()
    world.mount = "link"
    world.job = {**world.job, "compute": {"node_count": 3, "accelerator": None}}
    kept = [resource for resource in world.resources() if str(resource.address) != "project.demo"]
    project = replace(
        state.resources[at("project.demo")], lifecycle=JobLifecycle(prevent_destroy=True)
    )
    state = replace(state, resources={**state.resources, at("project.demo"): project})
    return make_plan(world.inputs(state, desired=desired(*kept)))


def drift() -> Plan:
    """Weights vanished from the mirror, a machine is silent, a run ended, its code has changed."""
    world, state = settled(RunStatus.RUNNING)
    world.code = CodeTree("sha256:" + "77" * 32, 13, 35_000)
    world.mirrored = 0
    ended = run_record(1, RunStatus.COMPLETED).to_json()
    observed = {
        at("weights.qwen3"): Observation(
            ResourceStatus.MISSING, detail="the mirror has no such listing"
        ),
        at("cluster.lab"): Observation(
            ResourceStatus.UNREACHABLE, detail="lab/lab-0 is unreachable"
        ),
        at("job.sft"): Observation(ResourceStatus.PRESENT, {"run": ended}),
    }
    return make_plan(world.inputs(state, observed=observed))


def hostile() -> Plan:
    """Names and values that would paint, hide or turn the text around."""
    evil = resource(
        "weights.evil",
        {"source": "file:./\u202egnp.exe\x1b]0;owned\x07", "mount_location": "a\nb"},
    )
    return make_plan(PlanInputs(desired(evil), State()))


def expected_cost() -> Plan:
    """A sweep that ran before, at a price, with a limit; one of its jobs never completed."""
    world = PlanScenario()
    world.cluster["price_per_hour"] = 12
    world.job |= {"compute": {"node_count": 1, "accelerator": "H100:8"}, "max_duration": "6h"}
    state = state_after(make_plan(world.inputs()))
    took = (7_200.0, 9_000.0, 8_100.0)
    runs = [
        run_record(number, RunStatus.COMPLETED, phases={"running": seconds}).to_json()
        for number, seconds in enumerate(took, 1)
    ]
    job = replace(state.resources[at("job.sft")], outputs={"runs": runs})
    state = replace(state, resources={**state.resources, job.address: job})
    world.job = {**world.job, "runtime": {"start_commands": ["python train.py --lr 2e-4"]}}
    ours = PlanPolicy("ours", "machines", providers=("local",))
    waiver = PolicyWaiver("9999-12-31", "final run")
    budget = PlanPolicy("ours", "budget", max_hourly_cost=10, waiver=waiver)
    plan = make_plan(world.inputs(state, policies=(ours, budget)))
    return replace(plan, policy_results=tuple(check_policies([ours, budget], plan_json(plan))))


def unsaved_checkpoints() -> Plan:
    """A job goes with its cluster before all of its checkpoints are uploaded."""
    world, state = settled()
    sync = {"state": "SYNCING", "error": None, "pending": ["step-100", "`step`<200>"]}
    run = run_record(1, RunStatus.STOPPED, reported={"sync": sync}).to_json()
    job = replace(state.resources[at("job.sft")], outputs={"runs": [run]})
    state = replace(state, resources={**state.resources, job.address: job})
    return make_plan(world.inputs(state, PlanOptions(destroy=True)))


def many(plan: Plan, *rows: tuple[str, Action, str]) -> Plan:
    """The plan with a project changed for each row of name, action and new description."""
    first = next(change for change in plan.changes if change.address == at("project.demo"))
    before = dict(first.after or {})
    changes = tuple(
        replace(
            first,
            address=at(f"project.{name}"),
            action=action,
            before=None if action is Action.CREATE else before,
            after=None if action is Action.DELETE else {**before, "description": description},
        )
        for name, action, description in rows
    )
    return replace(plan, changes=changes, weights=(), deliveries=(), diagnostics=(), runs={})


def ten_thousand() -> Plan:
    """Changes of every kind and all with other values."""
    actions = (Action.UPDATE, Action.DELETE, Action.REPLACE, Action.CREATE)
    teams = ("vision", "speech-de", "nlp_eval")
    rows = [
        (f"{teams[number % 3]}-{number}", actions[number % 4], f"number {number}")
        for number in range(10_000)
    ]
    return many(first_apply(), *rows)


PLANS = [
    first_apply,
    no_changes,
    changed_rate,
    live_run_stop,
    destroyed,
    errors,
    drift,
    hostile,
    expected_cost,
    unsaved_checkpoints,
]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("make", PLANS)
def test_screen(make: Callable[[], Plan], width: int, screen: SnapshotAssertion) -> None:
    """The plan and its problems, without colour."""
    plan = make()
    assert (
        text(plan_text(plan, width=width, now=NOW) + diagnostic_lines(plan.diagnostics)) == screen
    )


@pytest.mark.parametrize("make", [live_run_stop, destroyed])
def test_concise(make: Callable[[], Plan], screen: SnapshotAssertion) -> None:
    """Resources that are destroyed or replaced are named, with the counts and tables, on screens and pages."""
    plan = make()
    page = "\n".join(plan_html(plan, NOW, concise=True))
    assert text(plan_text(plan, now=NOW, concise=True)) == screen
    assert "<details>" not in page
    assert plan.digest in page


@pytest.mark.parametrize("make", [*PLANS, ten_thousand])
def test_comment(make: Callable[[], Plan], snapshot: SnapshotAssertion) -> None:
    assert text(plan_markdown(make(), NOW)) == snapshot.use_extension(Comment)


@pytest.mark.parametrize("make", PLANS)
def test_page(make: Callable[[], Plan], snapshot: SnapshotAssertion) -> None:
    """The body; a browser runs and loads nothing, and shows each word of the comment."""
    plan = make()
    lines = plan_html(plan, NOW)
    page, comment = "\n".join(lines), "\n".join(plan_markdown(plan, NOW)).removeprefix(HTML_MARK)
    assert words(comment) - words(page_text(page)) <= {"!", "=", "->", "#", "-"}
    assert text(lines[lines.index("<body>") + 1 : -2]) == snapshot.use_extension(Body)


def words(text: str) -> set[str]:
    """Words without Markdown's marks."""
    marks = r"</?(details|summary|code)>|:?\*\*|^`{3,}.*$|^(###|-) |`"
    return {word.rstrip(":") for word in re.sub(marks, "", text, flags=re.MULTILINE).split()}


def test_no_loss_is_left_out_of_a_big_comment() -> None:
    """Of ten thousand changes each destroyed and replaced resource is named or counted, within the limit."""
    lines = plan_markdown(ten_thousand(), NOW, rest="trainctl show p.bin")
    assert sum(len(line) + 1 for line in lines) <= LIMIT - 400  # trainctl comment adds two lines
    for title in ("**Destroys:**", "**Replaces:**"):
        start = lines.index(title) + 2
        items = lines[start : lines.index("", start)]
        assert sum(int(re.findall(r"\((\d+)\)`$", item)[0]) for item in items) == 2500
    titles = [line for line in lines if line.startswith("<details>")]
    assert sum(int(re.findall(r" \((\d+)\)", title)[0]) for title in titles) == 10_000
    assert sum("more: trainctl show p.bin" in line for line in lines) == len(titles)

"""Parts of plans that depend on the window or on rare values: tables, offers, rows, graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import text, windows
from tests.support.projects.plans import PlanScenario, at
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import to_json
from trainctl.model.reports import UnattendedCost
from trainctl.model.specs.job_spec import JobSpec, Retry
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Change, Plan, WeightsRow
from trainctl.plugin_api.machines import Offer
from trainctl.views.plan.changes import (
    PageStyle,
    added_rows,
    brief,
    changed_rows,
    row_lines,
    without_job_defaults,
)
from trainctl.views.plan.html import plan_html
from trainctl.views.plan.json import plan_json
from trainctl.views.plan.pages import (
    dot_lines,
    graph_svg,
    mermaid_lines,
    plan_graph,
    plan_markdown,
    resource_graph,
)
from trainctl.views.plan.tables import offer_lines, weights_table
from trainctl.views.plan.text import plan_text
from trainctl.views.terminal.text import plain

PAGE = PageStyle(80, plain)
LLAMA = WeightsRow(
    at("weights.llama-3-1-8b-instruct"), "hf://me/a", "c" * 40, None, 2, 16_100_000_000, 1_200_000_000,
    14_900_000_000, 0, None,
)  # fmt: skip


def test_weights_table(screen: SnapshotAssertion) -> None:
    """The time has a column only if it is known; names are shortened before measured values."""
    timed = replace(LLAMA, forecast_seconds=150.0)
    rows = [timed, replace(LLAMA, forecast_seconds=0.0)]
    relayed = replace(timed, bytes_through_client=14_900_000_000)
    assert (
        windows(lambda width: weights_table([LLAMA], PageStyle(width, plain)), 80)
        + windows(lambda width: weights_table(rows, PageStyle(width, plain)), 60, 80, 100)
        + windows(lambda width: weights_table([relayed], PageStyle(width, plain)), 60, 80, 100)
        == screen
    )


def test_offers(screen: SnapshotAssertion) -> None:
    """Offers that differ by zone share a row, clusters are named if there are several, unknown prices are marked."""
    spot = Offer(
        "g6.xlarge", 1, "L4", "eu-west-1a", 0.3219, "spot history", "2026-01-02", "spot", 4
    )
    dear = Offer(
        "p5.48xlarge", 8, "H100", "eu-west-1a", 55.04, "table", "2025-06-15", "on-demand", None, "no quota"
    )  # fmt: skip
    free = replace(spot, zone="", price_per_hour=None, price_source="unknown", price_date="")
    cluster, other = at("cluster.gpu"), at("cluster.other")
    nodes = {"nodes": [{"cluster": "gpu", "name": "gpu-0"}]}
    change = Change(cluster, Action.UPDATE, "cloud", outputs=nodes)
    offers = {cluster: (spot, replace(spot, zone="eu-west-1b"), dear)}
    plans = [
        Plan("", 0, "", (change,), offers=offers),
        Plan("", 0, "", (), offers={cluster: (spot,), other: (free,)}),
    ]
    assert text(*(offer_lines(plan, PAGE) for plan in plans)) == screen
    assert offer_lines(Plan("", 0, "", ()), PAGE) == []


def test_cost_if_no_one_returns(screen: SnapshotAssertion) -> None:
    """In each format; as a whole in a window of 80 columns."""
    known = UnattendedCost(at("cluster.gpu"), 1, "guest", 1200.0, 2.49, 0.83)
    rows = (
        known,
        replace(known, machines=12, hourly=None, cost=None),
        replace(known, machines=2, end="provider", seconds=86400.0, cost=119.52),
        replace(known, end="", seconds=None, cost=None),
        replace(known, end="", seconds=None, hourly=None, cost=None),
    )
    plan = Plan("", 0, "", (), unattended=rows)
    page = [line for line in plan_html(plan) if "USD" in line]
    form = json.dumps(plan_json(plan)["cost"]["unattended"][0])
    assert text(plan_text(plan), plan_markdown(plan), page, [form]) == screen
    assert max(map(len, plan_text(plan))) <= 80


def test_changed_rows(screen: SnapshotAssertion) -> None:
    """Names are padded, a forced path is marked, long values are stacked, digests are cut, unknown values named."""
    before = {"a": 1, "long_name": "x", "list": ["x", "y"], "pin": "sha256:" + "a" * 64}
    after = {"a": 2, "long_name": None, "list": ["x", "new", "y"], "pin": "b" * 40}
    unknown = {"listing": None, "bytes": 2000}
    long = changed_rows({"a": "x" * 50}, {"a": "y" * 50})
    repeated = changed_rows({"a": ["x", "x"]}, {"a": ["x"]})
    assert (
        text(
            row_lines(list(changed_rows(before, after)), PAGE, [("a",)], unknown),
            row_lines(list(long), PAGE),
            row_lines(list(repeated), PAGE),
        )
        == screen
    )
    assert brief("b" * 41) == '"' + "b" * 41 + '"'


def test_added_rows_leave_out_empty_values_and_defaults_of_jobs() -> None:
    rows = added_rows({"a": None, "b": {}, "c": [], "d": "", "e": 0, "f": False, "g": {"h": 1}})
    assert [(row.name, row.after) for row in rows] == [("e", 0), ("f", False), ("g.h", 1)]
    assert without_job_defaults(list(added_rows(to_json(JobSpec())))) == []
    job = list(added_rows(to_json(JobSpec(project="demo", retry=Retry(max_attempts=3)))))
    assert [row.name for row in without_job_defaults(job)] == ["project", "retry.max_attempts"]


SVG = "{http://www.w3.org/2000/svg}"


def labels(lines: list[str]) -> list[str | None]:
    """The texts of a drawing, which must be well-formed XML."""
    return [node.text for node in ElementTree.fromstring("\n".join(lines)).iter(f"{SVG}text")]


def test_a_graph_in_dot_and_mermaid(screen: SnapshotAssertion) -> None:
    """Jobs of a matrix are one resource; names that are code in another language are escaped."""
    evil = Address(Kind.JOB, "a", '"];x --> "\\')
    sweep = [Address(Kind.JOB, "sweep", f"lr={number}") for number in range(20)]
    resources = {at("project.p"): [], **{job: [at("project.p"), sweep[0]] for job in sweep}}
    hostile = {'x"];\n<b>&\\': ["y"], "y": []}
    graphs = [
        plan_graph(make_plan(PlanScenario().inputs())),
        resource_graph({**resources, evil: sweep}),
        hostile,
    ]
    screens = [lines(graph) for graph in graphs for lines in (dot_lines, mermaid_lines)]
    assert text(*screens) == screen
    assert len(labels(graph_svg({"a": ["b"], "b": ["a"]}))) == 2
    assert labels(graph_svg(hostile)) == ["y", 'x"];\\n<b>&\\']

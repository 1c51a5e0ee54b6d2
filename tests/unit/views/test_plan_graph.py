"""Graphs of resources in three languages, and drawings."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

from tests.support.projects.plans import PlanScenario, at
from trainctl.model.address import Address, Kind
from trainctl.plan.planner import make_plan
from trainctl.views.plan.graph import (
    dot_lines,
    graph_svg,
    mermaid_lines,
    plan_graph,
    resource_graph,
    timeline_svg,
)

SVG = "{http://www.w3.org/2000/svg}"
EVIL = Address(Kind.JOB, "a", '"];x --> "\\')
"""Alone in its matrix; its key is in no picture."""


def texts(lines: list[str]) -> list[str | None]:
    """The texts of a drawing, which must be well-formed XML."""
    return [node.text for node in ElementTree.fromstring("\n".join(lines)).iter(f"{SVG}text")]


def test_a_plan_is_a_graph_of_its_changes() -> None:
    """Each resource has the symbol of its action; an arrow leads to what it needs."""
    graph = plan_graph(make_plan(PlanScenario().inputs()))
    assert graph["+ job.sft"] == ["+ project.demo", "+ cluster.lab", "+ weights.qwen3"]
    assert dot_lines(graph)[-4:-1] == [
        '  "+ job.sft" -> "+ project.demo";',
        '  "+ job.sft" -> "+ cluster.lab";',
        '  "+ job.sft" -> "+ weights.qwen3";',
    ]
    assert mermaid_lines(graph)[1] == '  n0["+ project.demo"]'
    assert mermaid_lines(graph)[-1] == "  n3 --> n2"


def test_a_matrix_is_one_resource() -> None:
    """Its jobs need it not; names that are code in another language stay names."""
    sweep = [Address(Kind.JOB, "sweep", f"lr={number}") for number in range(20)]
    graph = resource_graph(
        {at("project.p"): [], **{job: [at("project.p"), sweep[0]] for job in sweep}, EVIL: sweep}
    )
    assert graph == {
        "project.p": [],
        "job.sweep[*]": ["project.p"],
        "job.a[*]": ["job.sweep[*]"],
    }
    hostile = {'x"];\n<b>&\\': ["y"], "y": []}
    assert mermaid_lines(hostile)[1] == '  n0["x#34;#93;#59;#10;#60;b#62;#38;#92;"]'
    assert dot_lines(hostile)[3] == '  "x\\"];\\\\n<b>&\\\\";'
    assert texts(graph_svg(hostile))[1] == 'x"];\\n<b>&\\'


def test_no_two_boxes_of_a_drawing_overlap() -> None:
    """A resource is to the right of all that it needs, also where records are a circle."""
    graph = {f"job.j{n}": [f"job.j{m}" for m in range(n) if n % (m + 2) == 0] for n in range(40)}
    root = ElementTree.fromstring("\n".join(graph_svg(graph)))
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in root.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 40
    for (x, y, width, height), (x2, y2, width2, height2) in combinations(boxes, 2):
        assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    labels = [str(text.text) for text in root.iter(f"{SVG}text")]
    left = {label: box[0] for label, box in zip(labels, boxes, strict=True)}
    assert all(left[other] < left[label] for label, others in graph.items() for other in others)
    assert len(texts(graph_svg({"a": ["b"], "b": ["a"]}))) == 2
    assert graph_svg({})[-1] == "</svg>"


def test_a_timeline_shows_slow_deliveries_first() -> None:
    """A bar ends with the part of the delivery itself; what has no forecast has no bar."""
    (row,) = make_plan(PlanScenario().inputs()).deliveries
    rows = [
        replace(row, forecast_seconds=10.0, last_hop_seconds=4.0),
        replace(row, rank=1, forecast_seconds=20.0, last_hop_seconds=None),
        replace(row, rank=2, forecast_seconds=None),
    ]
    lines = timeline_svg(rows)
    assert texts(lines) == [
        "job.sft rank 1: weights.qwen3",
        "20 s",
        "job.sft rank 0: weights.qwen3",
        "10 s",
    ]
    assert re.findall(r'width="([\d.]+)" height="26"', "".join(lines)) == [
        "400.0",
        "400.0",
        "200.0",
        "80.0",
    ]
    assert timeline_svg(rows[2:]) == []

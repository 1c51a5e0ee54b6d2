"""Images and checkpoints of new runs, and how all contents are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.contents import ContentChange, ContentDiff, ContentGroup
from trainctl.model.reports import RunForecast
from trainctl.model.run import RunRecord
from trainctl.operations.contents import with_contents
from trainctl.plan.changes import plan_digest
from trainctl.plan.values import Change, ImageRow, Plan
from trainctl.views.plan.html import plan_html
from trainctl.views.plan.pages import plan_markdown
from trainctl.views.plan.text import content_lines, plan_text

BASE, TUNED, OTHER = (Address.parse(f"job.{name}") for name in ("base", "tuned", "other"))
RUN = RunRecord("abcdefg", 3, "key", image_digest="sha256:" + "a" * 64).to_json()
LOADS = {
    "load_checkpoint_config": {
        "enabled": True,
        "checkpoints": [{"project": "p", "job": "job.base"}, {"project": "p", "run": "xyz"}],
    }
}


def plan(*started: Address) -> Plan:
    """A plan with three jobs, of which these start runs."""
    attributes: dict[str, Any] = {"project": "p", "cluster": "c", "runtime": LOADS}
    changes = (
        Change(BASE, Action.REPLACE, "local", after={"cluster": "c"}, outputs={"runs": [RUN]}),
        Change(TUNED, Action.CREATE, "local", after=attributes),
        Change(OTHER, Action.CREATE, "local", after={"cluster": "c"}),
    )
    images = (ImageRow(BASE, 0, None, "x:1", None, None, digest="sha256:" + "b" * 64),)
    return Plan("", 0, "", changes, images=images, runs={job: RunForecast(1) for job in started})


def lines(of: Plan) -> list[str]:
    return content_lines(with_contents(cast("Any", None), of, offline=True).contents)


def test_images_and_the_runs_that_checkpoints_come_from() -> None:
    image = "  job.base image: aaaaaaaaaaaa -> bbbbbbbbbbbb"
    tuned = "  job.tuned loads checkpoints of"
    assert lines(plan(OTHER)) == [image]
    assert lines(plan(TUNED)) == [image, f"{tuned} p/base/3-abcdefg, p/xyz"]
    assert lines(plan(BASE, TUNED)) == [image, f"{tuned} the new run of job.base, p/xyz"]


def test_contents_are_bounded_escaped_and_not_covered_by_the_digest() -> None:
    """Names come from upstream."""
    rows = [ContentChange(f"f{number:03}\x1b[0m<b>`", None, number) for number in range(100)]
    files, added = ContentGroup.of("files", rows), {"added Python code": "x.py** `<script>\x1b"}
    notes = ("config.json: timed out",)
    diff = ContentDiff(BASE, "weights", "a" * 40, "b" * 40, (files,), added, notes)
    empty = plan()
    full = replace(empty, contents=(diff,))
    text, markdown, html = ("\n".join(view(full)) for view in (plan_text, plan_markdown, plan_html))
    assert plan_digest(full.changes, "", "") == plan_digest(empty.changes, "", "")
    assert "      and 88 more\n" in text
    assert "    not known: config.json: timed out\n" in text
    assert "- `job.base`: **added Python code** (``x.py** `<script>" in markdown
    assert "<script>" not in html
    assert "\x1b" not in text + markdown + html

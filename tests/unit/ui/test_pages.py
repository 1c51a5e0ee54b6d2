"""Pages of nodes with GPUs, prices and faults, whatever they report, and of a workspace that changes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.pages import site_of
from trainctl.cli.commands.ui import ui_command
from trainctl.cli.session import CliSession
from trainctl.errors import TrainctlError
from trainctl.model.reports import NodeReport, NodeUsage
from trainctl.ui.pages import PageRenderer
from trainctl.ui.runs import jobs_page

EVIL = "<script>alert(1)</script>\x1b[31m"
GPU = {"index": 0, "uuid": "u", "name": "H100", "memory_mib": 81920, "project": None}


def report(name: str, usage: NodeUsage | None = None, **found: Any) -> NodeReport:
    cache = {"used": 10, "listings": []}
    facts = {"disk": {"total": 100, "free": 50}, "cache": cache, "gpus": [], "runs": [], **found}
    return NodeReport("lab", name, "", "present", found=facts, usage=usage or NodeUsage())


def reports(_: object) -> list[NodeReport]:
    return [
        report(
            "gpu",
            gpus=[{**GPU, "claimed_by": "job.a run 3", "used_by": None}, {**GPU, "claimed_by": None, "used_by": EVIL}],
        ),
        report("full", disk={"total": 100, "free": 5}),
        report("idle", NodeUsage(price_per_hour=2.5, cost=7.25, idle_since=time.time() - 7200)),
        report("bad", NodeUsage(quarantine=EVIL)),
        NodeReport("lab", "away", "", "unreachable", why="lab/away: connection refused\nmore"),
    ]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ProjectHarness]:
    with project(tmp_path) as created:
        yield created


@pytest.fixture
def site(made: ProjectHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageRenderer]:
    monkeypatch.setattr("trainctl.ui.pages.report_nodes", reports)
    renderer = site_of(made)
    yield renderer
    renderer.close()


def text_of(page: str, section: str = "main") -> str:
    """The words of a page below the element with an id or name."""
    body = page.partition("<main>" if section == "main" else f'id="{section}"')[2]
    return " ".join(re.sub("<[^>]*>", " ", body.partition("</section>")[0]).split())


def test_what_needs_attention(site: PageRenderer) -> None:
    text = text_of(site.start(), "attention")
    assert "disk lab/full: 95 % full, 5 B free trainctl cache evict lab" in text
    assert "idle lab/idle: idle since 20" in text
    assert "UTC, 2.50 USD per hour trainctl destroy --target cluster.lab" in text
    assert "unreachable lab/away: lab/away: connection refused trainctl nodes" in text
    assert "quarantined lab/bad: &lt;script&gt;alert(1)&lt;/script&gt;\\u001b[31m" in text


def test_gpus_and_disks(site: PageRenderer) -> None:
    page = site.nodes()
    assert "lab/gpu 0 H100 85.9 GB job.a run 3" in text_of(page, "gpus")
    assert "&lt;script&gt;alert(1)" in text_of(page, "gpus")
    assert "lab/gpu ✓ present 2 1 1 50 % 50 B 10 B" in text_of(page, "nodes")
    assert "<script>alert" not in page


def test_an_empty_project_has_pages(site: PageRenderer) -> None:
    assert "No jobs have run yet." in text_of(site.start(), "jobs")
    assert "No run has started." in text_of(jobs_page(site, "", QueryParams()), "runs")
    assert "Plan" in text_of(site.plan())


def test_a_secret_that_the_manifest_declares_later_is_masked(
    made: ProjectHarness, site: PageRenderer
) -> None:
    made.variables["LATER"] = "a-later-secret"
    assert site.masked("x a-later-secret") == "x a-later-secret"
    made.write({"trainctl.yaml": "secrets: {later: {from: env, name: LATER}}\n"})
    site.start()
    assert site.masked("x a-later-secret") == "x (redacted)"


def test_an_invalid_manifest_is_shown_on_the_page_of_the_plan(
    made: ProjectHarness, site: PageRenderer
) -> None:
    made.write({"trainctl.yaml": "jobs: {a: {oops: 1}}\n"})
    assert "unknown key &#39;oops&#39;" in text_of(site.plan())


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trainctl.ui.pages")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TrainctlError, match="trainctl ui requires jinja2") as caught:
        ui_command(CliSession.of_process())
    assert caught.value.detail == "Install it: pip install 'trainctl[ui]'."

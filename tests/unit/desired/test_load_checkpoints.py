"""``load_checkpoint_config``: which job, of a matrix or not, a reference means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.projects.manifests import attributes, desired, problems
from trainctl.desired.values import DesiredState

ONE, TWO = 'job.s["lr=1"]', 'job.s["lr=2"]'


def manifest(job_id: str, *, within: bool = False) -> str:
    """A sweep of two and a job beside it, of which one begins with the latest of ``job_id``."""
    loading = f"load_checkpoint_config: {{enabled: true, checkpoints: [{{typ: latest, job_id: '{job_id}'}}]}}"
    sweep, other = (f", {loading}", "") if within else ("", f", {loading}")
    return (
        "project: {name: p}\n"
        "jobs:\n"
        f"  s: {{matrix: {{lr: [1, 2]}}, runtime: {{start_commands: [train]{sweep}}}}}\n"
        f"  ld: {{runtime: {{start_commands: [train]{other}}}}}\n"
    )


def loaded(wish: DesiredState, job: str) -> dict[str, Any]:
    """The one reference of a job."""
    (one,) = attributes(wish, job)["runtime"]["load_checkpoint_config"]["checkpoints"]
    return dict(one)


def before(wish: DesiredState, job: str) -> set[str]:
    """The jobs that come before a job."""
    (resource,) = (one for key, one in wish.resources.items() if str(key) == job)
    return {str(one) for one in resource.depends_on if str(one).startswith("job.")}


@pytest.mark.parametrize("written", [ONE.removeprefix("job."), ONE])
def test_one_of_a_matrix_is_named_whole(tmp_path: Path, written: str) -> None:
    """It comes before who begins with it, and must have saved something."""
    wish = desired(tmp_path, manifest(written))

    assert loaded(wish, "job.ld") == {
        "project": "p",
        "job": ONE,
        "run": None,
        "name": None,
        "optional": False,
    }
    assert before(wish, "job.ld") == {ONE}


@pytest.mark.parametrize("written", ["s", "job.s"])
def test_within_a_matrix_its_name_means_the_very_job(tmp_path: Path, written: str) -> None:
    """Each has its own latest, which the first run of a loop need not find."""
    wish = desired(tmp_path, manifest(written, within=True))

    for job in (ONE, TWO):
        assert (loaded(wish, job)["job"], loaded(wish, job)["optional"]) == (job, True)
        assert before(wish, job) == set()


def test_a_member_may_begin_with_another(tmp_path: Path) -> None:
    """That one comes before the others, and not before itself."""
    wish = desired(tmp_path, manifest(ONE.removeprefix("job."), within=True))

    assert [loaded(wish, job)["optional"] for job in (ONE, TWO)] == [True, False]
    assert [before(wish, job) for job in (ONE, TWO)] == [set(), {ONE}]


def test_a_matrix_of_one_needs_no_key(tmp_path: Path) -> None:
    """There is only one that its name can mean."""
    wish = desired(tmp_path, manifest("s").replace("[1, 2]", "[1]"))

    assert loaded(wish, "job.ld")["job"] == ONE


@pytest.mark.parametrize(
    ("written", "summary", "detail"),
    [
        (
            "s",
            "job_id: job.s has 2 jobs",
            """Use the name of a single job, for example 's["lr=1"]'.""",
        ),
        ('s["lr=3"]', """'s["lr=3"]' is neither a job nor a run ID""", """Did you mean 's["lr="""),
        ("sss", "'sss' is neither a job nor a run ID", "Known: ld, s["),
    ],
)
def test_a_name_that_means_none_or_several(
    tmp_path: Path, written: str, summary: str, detail: str
) -> None:
    """It is told, with what can be written instead."""
    (one,) = problems(tmp_path, manifest(written))

    assert summary in one.summary
    assert detail in one.detail


def test_the_job_of_a_project_is_looked_for_there(tmp_path: Path) -> None:
    """Where jobs of several projects stand in one manifest, also of one of a matrix."""
    text = manifest(ONE).replace("project: {name: p}", "projects: {p: {}, q: {}}")
    text = text.replace("  s: {", "  s: {project: q, ").replace("ld: {", "ld: {project: p, ")

    assert loaded(desired(tmp_path, text), "job.ld")["project"] == "q"

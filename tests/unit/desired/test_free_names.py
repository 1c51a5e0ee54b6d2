"""Names of projects and jobs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import desired, problems


def test_names_are_text_and_addresses_are_slugs(tmp_path: Path) -> None:
    """Of projects and jobs; a reference may use either."""
    text = """\
projects: {"LoRA GLM-4.6 - ML Cookbook": {}, "\u00dcber/alles": {name: Other}}
jobs:
  "My job!": {project: LoRA GLM-4.6 - ML Cookbook, runtime: {start_commands: ["${{ job.name }}"]}}
  b: {name: "A & B", project: \u00dcber/alles, runtime: {start_commands: [x]}}
"""
    wish = desired(tmp_path, text)
    jobs = {str(job.address): job.job_spec for job in wish.jobs()}
    assert list(jobs) == ["job.My-job", "job.b"]
    first, second = jobs.values()
    assert (first.name, first.project) == ("My job!", "LoRA-GLM-4.6-ML-Cookbook")
    assert first.project_name == "LoRA GLM-4.6 - ML Cookbook"
    assert (second.name, second.project, second.project_name) == ("A & B", "Uber-alles", "Other")


def test_equal_slugs_name_both(tmp_path: Path) -> None:
    (one,) = problems(
        tmp_path,
        "jobs: {a b: {runtime: {start_commands: [x]}}, a-b: {runtime: {start_commands: [x]}}}",
    )
    assert one.summary == "the names 'a b' and 'a-b' have the same address job.a-b"


@pytest.mark.parametrize("name", ["", " ", "a\\tb", "x" * 129])
def test_invalid_names(tmp_path: Path, name: str) -> None:
    """Nothing that can't be printed, and at most 128 characters."""
    for text in (
        f'project: {{name: "{name}"}}',
        f'projects: {{"{name}": {{}}}}',
        f'jobs: {{"{name}": {{runtime: {{start_commands: [x]}}}}}}',
    ):
        assert {one.code for one in problems(tmp_path, text)} == {"invalid-name"}

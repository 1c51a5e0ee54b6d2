"""Names of projects and jobs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import desired, problems
from trainctl.jobs.environment import RunPaths, environment
from trainctl.model.address import Address, slug
from trainctl.model.run import RunRecord

PATHS = RunPaths(*["/x"] * 7)


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
    variables = environment(Address.read("My-job"), first, RunRecord("r", 1, "k"), PATHS, "x", None)
    assert variables["BT_TRAINING_PROJECT_NAME"] == "LoRA GLM-4.6 - ML Cookbook"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("demo/qwen3-0.6b", "demo-qwen3-0.6b"),
        ("a--b__c.d", "a--b__c.d"),
        ("LoRA GLM-4.6 - ML Cookbook", "LoRA-GLM-4.6-ML-Cookbook"),
        (" _x! ", "x"),
        ("\u65e5\u672c\u8a9e", "name-77710aed"),
        ("a b" * 40, ("a-ba-b" * 40)[:64].rstrip("-")),
    ],
)
def test_slugs(text: str, name: str) -> None:
    """A valid name stays as it is; a slug is one, too."""
    assert slug(text) == name
    assert slug(name) == name


def test_names_in_expressions_are_those_written(tmp_path: Path) -> None:
    wish = desired(
        tmp_path,
        "project: {name: A b}\njobs: {j: {labels: {x: '${{ project.name }}'}, runtime: {start_commands: [x]}}}",
    )
    (job,) = wish.jobs()
    assert (job.job_spec.labels, job.job_spec.project) == ({"x": "A b"}, "A-b")


@pytest.mark.parametrize("accelerator", ["none", "H100:0"])
def test_a_job_without_gpus(tmp_path: Path, accelerator: str) -> None:
    """On a node with GPUs it claims none."""
    text = f"jobs: {{j: {{compute: {{accelerator: '{accelerator}'}}, runtime: {{start_commands: [x]}}}}}}"
    (job,) = desired(tmp_path, text).jobs()
    compute = job.job_spec.compute
    assert (compute.accelerator, compute.gpus, compute.gpu_kind) == ("none", 0, "")


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

"""Credentials in manifests, and other values that are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import problems

CREDENTIALS = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "https://user:pa55word@host/file",
    "https://host/file?X-Amz-Signature=0123456789abcdef",
]
PLACES = [
    "weights: {a: '%s'}",
    "weights: {a: {source: '%s', mount_location: m}}",
    "jobs: {j: {weights: ['%s'], runtime: {start_commands: [x]}}}",
    "jobs: {j: {runtime: {start_commands: ['%s']}}}",
    "jobs: {j: {runtime: {start_commands: [x], environment_variables: {A: '%s'}}}}",
    "jobs: {j: {cluster: '%s', runtime: {start_commands: [x]}}}",
    "jobs: {j: {priority: '%s', runtime: {start_commands: [x]}}}",
    "secrets: {a: {from: env, value: '%s'}}",
    "secrets: {a: '%s'}",
    "vars: {a: '%s'}",
    "vars: {a: '%s'}\nproject: {description: '${{ var.a }}'}",
    "clusters: {c: {provider: local, nodes: '%s'}}",
    "clusters: {c: {provider: '%s'}}",
    "mirror: {url: '%s'}",
    "'%s': 1",
    "weights: {'%s': 5}",
    "jobs: {j: {labels: {'%s': 5}, runtime: {start_commands: ['${{ var.%s }}']}}}",
]


@pytest.mark.parametrize("text", PLACES)
def test_a_credential_is_refused_and_never_shown(tmp_path: Path, text: str) -> None:
    """Whatever else is wrong with its place."""
    for credential in CREDENTIALS:
        result = problems(tmp_path, text.replace("%s", credential))
        assert any("looks like a credential" in problem.summary for problem in result)
        assert credential not in "".join(f"{problem.to_json()}" for problem in result)


@pytest.mark.parametrize("value", ["{PASSWORD: 12345678}", "{X: 12345678}"])
def test_values_of_environment_variables_are_never_shown(tmp_path: Path, value: str) -> None:
    """A number without quotes may be a password."""
    text = f"jobs: {{j: {{runtime: {{start_commands: [x], environment_variables: {value}}}}}}}"
    (problem,) = problems(tmp_path, text)
    assert "12345678" not in str(problem.to_json())
    assert "quotes" in problem.detail


@pytest.mark.parametrize("image", ["a" * 5000 + "!", "a-" * 2000 + "!"])
def test_long_names_of_images_are_refused_in_little_time(tmp_path: Path, image: str) -> None:
    """The pattern of image names doesn't backtrack."""
    text = f"jobs: {{a: {{image: {{base_image: '{image}'}}, runtime: {{start_commands: [x]}}}}}}"
    (problem,) = problems(tmp_path, text)
    assert "not an image name" in problem.summary


def test_problems_in_toml_have_a_path(tmp_path: Path) -> None:
    text = "[jobs.sft]\ncluster = 'nowhere'\n[jobs.sft.runtime]\nstart_commands = ['x']\n"
    (problem,) = problems(tmp_path, text, "trainctl.toml")
    assert str(problem.where) == "trainctl.toml: jobs.sft.cluster"
    assert problem.summary == "cluster: undeclared cluster 'nowhere'"

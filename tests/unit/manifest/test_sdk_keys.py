"""Keys of the hosted service's SDK that mean something else here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import problems


@pytest.mark.parametrize(
    ("job", "hint"),
    [
        ("interactive_session: {session_provider: ssh}", "enter runs with trainctl ssh"),
        ("team_name: nlp", "Use labels: {team: NAME} in the project."),
        ("enable_baseten_workdir: true", "commands always start in $BT_WORKING_DIR"),
        ("compute: {accelerator: {accelerator: H100, count: 8}}", "Use TYPE:COUNT"),
        (
            "image: {base_image: a, docker_auth: {auth_method: REGISTRY_SECRET, registry: r, secret_name: x}}",
            "Use registry_secret_docker_auth",
        ),
        (
            "image: {base_image: a, docker_auth: {registry_secret_docker_auth: {secret_ref: {name: x}}}}",
            "Use {secret: NAME}",
        ),
    ],
)
def test_keys_of_the_sdk_say_what_to_write(tmp_path: Path, job: str, hint: str) -> None:
    """A config that was translated by hand."""
    found = problems(tmp_path, f"jobs: {{a: {{runtime: {{start_commands: [x]}}, {job}}}}}")
    assert any(hint in one.detail for one in found)


def test_variables_and_caches_of_the_sdk(tmp_path: Path) -> None:
    """In the runtime section."""
    text = "jobs: {a: {runtime: {start_commands: [x], enable_cache: true, environment_variables: {A: {name: b}}}}}"
    details = " ".join(one.detail for one in problems(tmp_path, text))
    assert "Use cache_config: {enabled: true" in details
    assert "Use {secret: NAME}" in details

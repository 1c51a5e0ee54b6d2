"""Settings of clusters by Terraform, and outputs of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainctl.errors import NodeError, PermissionDenied
from trainctl.model.trust import Trust
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_terraform.module import declared_backend, root_module
from trainctl_terraform.settings import TerraformSettings, find_problems, read_output

PINNED = f"git::https://git.example/infra?ref={'a' * 40}"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"module": "acme/gpu/cloud"}, "is not pinned"),
        ({"module": "git::https://git.example/infra?ref=main"}, "is not pinned"),
        ({"module": PINNED}, ""),
        ({"module": "acme/gpu/cloud", "version": "1.0.0"}, ""),
    ],
)
def test_modules_are_pinned(settings: Any, problem: str) -> None:
    found = [item.summary for item in find_problems(ClusterSettings("lab", settings))]

    assert [problem in text for text in found] == ([True] if problem else [])


def test_inputs_are_variables_and_secrets_are_ephemeral() -> None:
    settings = TerraformSettings.read(
        {
            "module": "./m",
            "variables": {"a": ["${file(1)}%{if}"]},
            "secrets": {"t": {"secret": "s"}},
        }
    )
    root = root_module(settings, "../m")

    assert "file(1)" not in str(root)
    assert (root["module"]["node"]["t"], root["variable"]["a"]) == ("${var.t}", {})
    assert root["variable"]["t"]["ephemeral"]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("10.0.0.1", "output node of gpu-0 is invalid"),
        ({"user": "u"}, "required"),
        ({"address": "-oProxyCommand=x", "user": "u"}, r"\$.address"),
        ({"address": "a", "user": "u", "port": True}, r"\$.port"),
        ({"address": "a", "user": "u", "ends": ["host"]}, r"\$.ends\[0\]"),
    ],
)
def test_an_output_that_is_no_machine_is_refused(node: Any, problem: str) -> None:
    with pytest.raises(NodeError, match=problem) as caught:
        read_output(node, "gpu-0")

    assert caught.value.code == "terraform-output"


def test_modules_run_only_if_the_trust_file_allows_them() -> None:
    """A directory counts by its path, however the manifest names it."""
    trust = Trust("trust.toml", modules=("./infra/*", "git::https://git.example/*"))

    project = Path("/project")
    trust.require_module("./infra/../infra/a", project)
    trust.require_module(PINNED, project)
    for source in ("./infra/../b", "../infra/a", "/infra/a", "git::https://other.example/a"):
        with pytest.raises(PermissionDenied, match="is not run"):
            trust.require_module(source, project)


@pytest.mark.parametrize(
    "block",
    [
        'backend "s3" {\n    bucket = "b{"\n    assume_role = {\n      role_arn = "r"\n    }\n  }',
        'backend "gcs" {}',
        'backend "gcs" { bucket = "b" }',
    ],
)
def test_a_declared_backend_is_used_as_it_stands(tmp_path: Path, block: str) -> None:
    """Comments and files of other blocks are not one, nor is a local one, as trainctl keeps the states."""
    (tmp_path / "a.tf").write_text('terraform {\n  backend "local" {}\n}\n# backend "s3" {}\n')
    (tmp_path / "main.tf").write_text(
        f"terraform {{\n  {block}\n  required_providers {{\n  }}\n}}\n"
    )
    assert declared_backend(tmp_path).strip() == block
    (tmp_path / "main.tf").unlink()
    assert declared_backend(tmp_path) == ""

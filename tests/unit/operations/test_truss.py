"""``import truss``: configs of the hosted service as manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.support.projects.manifests import LOCAL
from trainctl.desired.build import build
from trainctl.desired.values import DesiredState
from trainctl.manifest.read import read
from trainctl.manifest.writer import to_toml, to_yaml
from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.operations.manifests.truss import ImportTarget, convert

DUMPS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/truss/dumps.json").read_text()
)
"""Dumps of the configs in ``tests/support/projects/truss_configs.py``."""


class Manifest(SingleFileSnapshotExtension):
    """One manifest for each config."""

    file_extension = "yaml"
    _write_mode = WriteMode.TEXT


def imported(name: str, **target: Any) -> ImportedManifest:
    return convert(DUMPS[name], ImportTarget("/home/a", "/home/a", **target))


def desired(text: str, form: str, directory: Path) -> DesiredState:
    (directory / "shared").mkdir(exist_ok=True)
    (directory / form).mkdir(parents=True)
    (directory / form / f"trainctl.{form}").write_text(text, encoding="utf-8")
    return build(
        read(directory / form),
        provider_schema=lambda name: LOCAL if name == "local" else {"type": "object"},
        providers=["local", "ssh"],
    )


@pytest.mark.parametrize("name", DUMPS)
def test_manifest(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """It means what the config means, value by value, and is valid in both formats."""
    result = imported(name, hosts=["gpu-01", "gpu-02"])
    text = to_yaml(result.tree, result.comments)
    assert text == snapshot.use_extension(Manifest)
    toml = to_toml(result.tree, result.comments)
    (job,) = desired(text, "yaml", tmp_path).jobs()
    (same,) = desired(toml, "toml", tmp_path).jobs()
    assert replace(job.job_spec, code=same.job_spec.code) == same.job_spec
    assert str(job.address) == str(same.address) == f"job.{result.job}"


def test_every_field_is_carried_over_or_noted() -> None:
    """Also an unknown field of a later SDK."""
    result = imported("everything")
    assert set(result.carried) == {
        "project.name", "project.team_name", "name", "workspace", "image.base_image", "image.docker_auth", "compute",
        "compute.availability_model", "weights", "runtime.start_commands", "runtime.cache_config",
        "runtime.checkpointing_config", "priority", "interactive_session",
    }  # fmt: skip
    assert {note.field for note in result.notes} == {
        "compute.cpu_count", "compute.memory", "weights[0].allow_patterns", "weights[0].ignore_patterns",
        "weights[7].source", "runtime.load_checkpoint_config", "interactive_session", "enable_baseten_workdir",
    }  # fmt: skip
    later = {**DUMPS["minimal"], "job": {**DUMPS["minimal"]["job"], "queue": "fast"}}
    (note,) = convert(later, ImportTarget("/a", "/a")).notes
    assert (note.outcome, note.field) == (ImportOutcome.MISSING, "queue")


@pytest.mark.parametrize("name", ["loops", "named", "latest-job", "other-project"])
def test_a_checkpoint_of_the_service_makes_a_difference(name: str) -> None:
    """The manifest is written all the same, without it."""
    result = imported(name)
    assert not result.runs_alike
    assert [note.outcome for note in result.notes] == [ImportOutcome.DIFFERENT]
    assert "load_checkpoint_config" not in result.tree["jobs"]["loading"]["runtime"]


def changed(**runtime: Any) -> ImportedManifest:
    """The result for a minimal config with other values in ``runtime``."""
    job = DUMPS["minimal"]["job"]
    dump = {**DUMPS["minimal"], "job": {**job, "runtime": {**job["runtime"], **runtime}}}
    return convert(dump, ImportTarget("/a", "/a"))


def test_a_literal_credential_becomes_a_secret(tmp_path: Path) -> None:
    """It is in neither the manifest nor the report."""
    token = "hf_" + "a1" * 17
    result = changed(environment_variables={"HF_TOKEN": token})
    text = to_yaml(result.tree, result.comments)
    assert desired(text, "yaml", tmp_path).secrets["HF_TOKEN"].source == "HF_TOKEN"
    assert token not in repr(result)
    assert token not in repr(changed(start_commands=[f"login {token}"]).carried)


@pytest.mark.parametrize(
    "runtime",
    [
        {"environment_variables": {"BT_NODE_RANK": "0"}},
        {"environment_variables": {"A": "${{ b }}"}},
        {"start_commands": ["echo '${{ b }}'"]},
        {"start_commands": ["login hf_" + "a1" * 17]},
        {"start_commands": []},
    ],
)
def test_values_that_trainctl_cannot_express_make_a_difference(runtime: dict[str, Any]) -> None:
    assert not changed(**runtime).runs_alike


def test_clusters_and_code_of_an_import() -> None:
    """A cluster of hosts, a declared one, or this machine; the code is the config's directory."""
    dump = DUMPS["minimal"]
    hosts = convert(dump, ImportTarget("/w/a", "/w", None, ["h"])).tree
    assert hosts["clusters"] == {"hosts": {"provider": "ssh", "hosts": ["h"]}}
    assert hosts["jobs"]["minimal"]["code"] == "a"
    named = convert(dump, ImportTarget("/w/a", "/w", "lab")).tree
    assert named["jobs"]["minimal"]["cluster"] == "lab"
    assert "clusters" not in named
    cookbook = [
        convert(DUMPS["cookbook"], ImportTarget("/a", "/a", "lab", h)).tree["jobs"]
        for h in ((), ("h",))
    ]
    cpus = [job["compute"].get("cpu_count") for jobs in cookbook for job in jobs.values()]
    assert cpus == [128, None]
    assert "cluster" not in imported("minimal").tree["jobs"]["minimal"]

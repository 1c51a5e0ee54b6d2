"""``import truss``: configs of the hosted service as manifests."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.manifests import LOCAL
from trainctl.base.json import JsonObject
from trainctl.desired.build import build
from trainctl.desired.values import DesiredState
from trainctl.manifest.read import read
from trainctl.manifest.text.writer import to_toml, to_yaml
from trainctl.manifest.text.yaml_text import parse_yaml
from trainctl.manifest.tree import to_plain
from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.model.specs.job_spec import JobSpec, SecretRef
from trainctl.operations.truss.convert import ImportTarget, convert

DUMPS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/truss/dumps.json").read_text()
)
"""Dumps of the configs in ``tests/support/projects/truss_configs.py``."""
WRITERS = {"yaml": to_yaml, "toml": to_toml}


def imported(name: str, **target: Any) -> ImportedManifest:
    """The result for one of the configs."""
    return convert(DUMPS[name], ImportTarget("/home/a", "/home/a", **target))


def schema_of(provider: str) -> JsonObject:
    return LOCAL if provider == "local" else {"type": "object"}


def desired(result: ImportedManifest, form: str, directory: Path) -> DesiredState:
    """What the written manifest asks for."""
    text = WRITERS[form](result.tree, result.comments)
    directory = directory / "a"
    (directory.parent / "shared").mkdir()
    directory.mkdir()
    (directory / f"trainctl.{form}").write_text(text, encoding="utf-8")
    return build(read(directory), provider_schema=schema_of, providers=["local", "ssh"])


def differences(job: JobSpec, dump: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Values of a job that differ from those of the SDK, by field."""
    compute, runtime = dump["compute"], dump["runtime"]
    accelerator = compute["accelerator"] or {"accelerator": "", "count": 0}
    pairs: dict[str, tuple[Any, Any]] = {
        "image": (job.image and job.image.base_image, dump["image"]["base_image"]),
        "nodes": (job.compute.node_count, compute["node_count"]),
        "accelerator": (
            (job.compute.gpu_kind, job.compute.gpus),
            (accelerator["accelerator"], accelerator["count"]),
        ),
        "model": (job.compute.availability_model, compute["availability_model"]),
        "commands": (
            list(job.runtime.start_commands),
            list(filter(str.strip, runtime["start_commands"])),
        ),
        "environment": (
            {
                name: {"name": value.secret} if isinstance(value, SecretRef) else value
                for name, value in job.runtime.environment_variables.items()
            },
            runtime["environment_variables"],
        ),
        "priority": (job.priority, dump["priority"] or 0),
    }
    for section in ("cache_config", "checkpointing_config"):
        wanted = runtime[section] or {"enabled": False}
        for name, value in wanted.items() if wanted["enabled"] else [("enabled", False)]:
            pairs[f"{section}.{name}"] = (getattr(getattr(job.runtime, section), name), value)
    for mine, source in zip(job.weights, dump["weights"], strict=True):
        pairs[source["source"]] = (
            (mine.source, mine.mount_location),
            (source["source"].replace("cw://", "s3://"), source["mount_location"]),
        )
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("name", DUMPS)
def test_a_manifest_means_what_the_config_means(name: str, form: str, tmp_path: Path) -> None:
    """Value by value, in both formats."""
    result = imported(name, hosts=["gpu-01", "gpu-02"])
    (job,) = desired(result, form, tmp_path).jobs()
    assert differences(job.job_spec, DUMPS[name]["job"]) == {}
    assert str(job.address) == f"job.{result.job}"
    project = job.job_spec.project_name or job.job_spec.project
    assert project == DUMPS[name]["project"]["name"]


def test_every_field_is_carried_over_or_noted() -> None:
    """Also an unknown field of a later SDK; patterns keep their meaning, in which ``*`` doesn't match ``/``."""
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
    assert result.tree["project"]["labels"] == {"team": "nlp"}
    weights = result.tree["jobs"]["All-of-it"]["weights"][0]
    assert weights["allow_patterns"] == ["/*.safetensors", "/**/*.json", "tokenizer/"]
    assert weights["ignore_patterns"] == ["/*.bin"]
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
    assert desired(result, "yaml", tmp_path).secrets["HF_TOKEN"].source == "HF_TOKEN"
    assert token not in repr(result)
    assert token not in repr(changed(start_commands=[f"login {token}"]).carried)


@pytest.mark.parametrize(
    "runtime",
    [
        {"environment_variables": {"BT_NODE_RANK": "0"}},
        {"environment_variables": {"A": "${{ b }}"}},
        {"start_commands": ["echo '${{ b }}'"]},
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
    assert "cluster" not in imported("minimal").tree["jobs"]["minimal"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | TEXTS | st.sampled_from(["a\n b\n", "no", "1e5", ".inf"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3))
def test_written_manifests_are_read_as_the_same_values(tree: dict[str, Any]) -> None:
    """By our own readers; comments change nothing."""
    comments: dict[tuple[str | int, ...], str] = {(key,): "A comment." for key in tree}
    problems: list[Any] = []
    root = parse_yaml(to_yaml(tree, comments), "a.yaml", problems)
    assert root is not None
    assert (to_plain(root), problems) == (tree, [])
    assert tomllib.loads(to_toml(tree, comments)) == tree

"""From a manifest to its resources, and all problems of manifests that can't be used."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.projects.manifests import desired, problems
from trainctl.desired.build import directory_name
from trainctl.desired.values import JobOverrides, SecretSpec
from trainctl.inputs.environment import RunPaths, environment
from trainctl.model.address import Address, Kind, slug
from trainctl.model.run import RunRecord
from trainctl.model.specs.location import StateKey
from trainctl.model.specs.resource import DesiredResource

at = Address.parse
JOB = "jobs: {tune: {runtime: {start_commands: [x]}}}\n"
BOOKS = [case for book in ("build", "expressions", "matrix") for case in cases(f"desired/{book}")]
FULL = {case.id: case.values[0] for case in BOOKS}["the complete manifest"]["manifest"]


def facts(resource: DesiredResource) -> dict[str, Any]:
    return {
        "persisted_secrets": None,
        **resource.attributes,
        "needs": sorted(map(str, resource.depends_on)),
        "where": str(resource.where),
        "provider": resource.attributes.get("provider", resource.provider),
        "lifecycle": json.loads(json.dumps(asdict(resource.lifecycle))),
    }


def select(value: Any, like: Any) -> Any:
    """The part of a value that is also in another one."""
    if isinstance(like, dict):
        return {key: select(value[key], item) for key, item in like.items()}
    if isinstance(like, list):
        assert len(value) == len(like)
        return [select(*pair) for pair in zip(value, like, strict=True)]
    return value


@pytest.mark.parametrize("case", BOOKS)
def test_a_manifest_declares_resources(tmp_path: Path, case: dict[str, Any]) -> None:
    directory = tmp_path / "demo"
    (directory / "src").mkdir(parents=True)
    state = desired(directory, case["manifest"], variables=case.get("variables"))
    result = {str(address): facts(resource) for address, resource in state.resources.items()}
    assert list(result) == case.get("addresses", list(result))
    expected = case.get("resources", {})
    assert select(result, expected) == expected
    assert [problem.summary for problem in state.warnings] == case.get("warnings", [])
    assert state.sources_vary is case.get("sources_vary", False)
    for address, resource in state.resources.items():
        if address.kind in (Kind.JOB, Kind.WEIGHTS, Kind.CACHE):
            spec = getattr(resource, f"{address.kind}_spec")
            assert spec.to_attributes() == resource.attributes


def test_floats_are_recorded_without_their_spelling(tmp_path: Path) -> None:
    """Also those of settings that no schema checks."""
    text = "clusters: {lab: {provider: ssh, ratio: 1.50, price_per_hour: 2.50}}"
    lab = desired(tmp_path, text).resources[at("cluster.lab")].attributes
    assert [type(lab[name]) for name in ("ratio", "price_per_hour")] == [float, float]


def test_the_complete_manifest_has_secrets_and_stores(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    state = desired(tmp_path, FULL)
    assert state.secrets == {
        "hf_access_token": SecretSpec("hf_access_token", "env", "HF_TOKEN", "2"),
        "wandb": SecretSpec("wandb", "file", "wandb.key", None, redact=False),
    }
    assert state.mirror.url == "file:///mirror"
    assert state.checkpoints.url == "s3://acme-ckpt/runs"
    assert state.state_url == "file:///state"
    assert state.manifest_files == ("trainctl.yaml",)


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("version: 1\n", "# a comment\n", True),
        ("H100:1", "H100", True),
        ("//qwen3/", "/qwen3", True),
        ("code: ./src/", "code: src", True),
        ("price_per_hour: 2", "price_per_hour: 2.0", True),
        ("lr: 1.0e-5", "lr: 1e-5", False),
        ("nodes: 2,", "nodes: 3,", False),
        ("prevent_destroy: true", "prevent_destroy: false", False),
        ("from: env, name: HF_TOKEN", "from: env, name: HF", False),
    ],
)
def test_the_digest_is_over_values(
    tmp_path: Path, before: str, after: str, *, is_same: bool
) -> None:
    (tmp_path / "src").mkdir()
    assert before in FULL
    first = desired(tmp_path, FULL).manifest_digest
    assert (desired(tmp_path, FULL.replace(before, after)).manifest_digest == first) is is_same


def test_the_digest_does_not_depend_on_directory_and_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name / "src").mkdir(parents=True)
    head, _, jobs = FULL.partition("jobs:\n")
    (tmp_path / "b" / "jobs.trainctl.yaml").write_text("jobs:\n" + jobs)
    whole = desired(tmp_path / "a", FULL).manifest_digest
    assert desired(tmp_path / "b", head).manifest_digest == whole


def test_a_name_that_is_too_long_for_an_address_is_a_problem(tmp_path: Path) -> None:
    text = f"jobs: {{{'j' * 127}: {{weights: ['hf://c/d'], runtime: {{start_commands: [x]}}}}}}"
    (problem,) = problems(tmp_path, text)
    assert "is too long" in problem.summary


@pytest.mark.parametrize(
    ("name", "project"), [("my project", "my-project"), ("...x", "x"), ("é", "project")]
)
def test_a_directory_names_a_project(tmp_path: Path, name: str, project: str) -> None:
    assert directory_name(tmp_path / name) == project


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("demo/qwen3-0.6b", "demo-qwen3-0.6b"),
        ("a--b__c.d", "a--b__c.d"),
        ("LoRA GLM-4.6 - ML Cookbook", "LoRA-GLM-4.6-ML-Cookbook"),
        (" _x! ", "x"),
        ("日本語", "name-77710aed"),
        ("a b" * 40, ("a-ba-b" * 40)[:64].rstrip("-")),
    ],
)
def test_a_slug_is_a_valid_name_and_stays_as_it_is(text: str, name: str) -> None:
    assert slug(text) == name
    assert slug(name) == name


def test_a_run_knows_its_project_by_the_name_that_was_written(tmp_path: Path) -> None:
    (job,) = desired(tmp_path, JOB + "project: {name: LoRA - Cookbook}\n").jobs()
    paths = RunPaths(*["/x"] * 7)
    variables = environment(job.address, job.job_spec, RunRecord("r", 1, "k"), paths, "x", None)
    assert variables["BT_TRAINING_PROJECT_NAME"] == "LoRA - Cookbook"


def test_resources_are_moved_removed_and_imported(tmp_path: Path) -> None:
    """A chain of moves leads to its end; to destroy is the default."""
    text = """\
moved: [{from: job.sft, to: job.mid}, {from: job.mid, to: job.tune}]
removed: [{from: cluster.old, destroy: false}, {from: job.gone}]
import: [{to: job.tune, id: lab/gpu-01/nuui5lk}]
"""
    state = desired(tmp_path, JOB + text)
    assert state.moves.renamed == {at("job.sft"): at("job.tune"), at("job.mid"): at("job.tune")}
    assert state.moves.removed == {at("cluster.old"): False, at("job.gone"): True}
    assert state.moves.imported == {at("job.tune"): "lab/gpu-01/nuui5lk"}
    assert state.manifest_digest != desired(tmp_path, JOB).manifest_digest


def test_state_keys_are_in_their_order(tmp_path: Path) -> None:
    """The first one encrypts."""
    keys = "encryption: {keys: [{id: k2, secret: a}, {id: k1, secret: a}]}"
    text = f"secrets: {{a: {{from: env}}}}\nstate: {{url: 'file:///s', {keys}}}\n"
    assert desired(tmp_path, text).state.keys == (StateKey("k2", "a"), StateKey("k1", "a"))
    assert desired(tmp_path, "state: {url: 'file:///s'}\n").state.keys == ()


def test_persisting_a_secret_is_part_of_the_digest(tmp_path: Path) -> None:
    variables = "environment_variables: {A: {secret: a}}"
    job = f"jobs: {{fit: {{runtime: {{start_commands: [x], {variables}}}}}}}\n"
    kept, unsaid, denied = (
        desired(tmp_path, f"secrets: {{a: {{from: env{more}}}}}\n{job}").manifest_digest
        for more in (", persist: true", "", ", persist: false")
    )
    assert unsaid == denied
    assert kept != unsaid


PROBLEM_BOOKS = ("sections", "locations", "secrets", "jobs", "expressions", "matrix", "overrides")


@pytest.mark.parametrize(
    "case", [case for book in PROBLEM_BOOKS for case in cases(f"problems/{book}")]
)
def test_all_problems_are_reported_with_their_places(tmp_path: Path, case: dict[str, Any]) -> None:
    """Each is ``LINE:COLUMN SUMMARY``; what is behind ``|`` is part of its detail."""
    directory = tmp_path / "demo"
    directory.mkdir()
    overrides = JobOverrides(case.get("set", {}), tuple(case.get("jobs", ())))
    result = problems(
        directory, case["manifest"], variables=case.get("variables"), overrides=overrides
    )
    expected = [text.partition(" | ") for text in case["problems"]]
    places = [str(problem.where).removeprefix("trainctl.yaml:") for problem in result]
    reported = [f"{place} {item.summary}" for place, item in zip(places, result, strict=True)]
    assert reported == [summary for summary, _, _ in expected]
    for problem, (_, _, detail) in zip(result, expected, strict=True):
        assert detail in problem.detail
        assert problem.address == case.get("address", problem.address)
        assert problem.code == case.get("code", problem.code)

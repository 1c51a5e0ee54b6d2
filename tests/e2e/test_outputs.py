"""Every machine-readable output of a real project holds against its public JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.projects.manifest_files import WEIGHTS, job, write_manifest
from tests.support.projects.project import ProjectHarness, project
from trainctl_schemas import names, schema

KEEPING = {"checkpointing_config": {"enabled": True}, "cache_config": {"enabled": True}}


@pytest.fixture(scope="module")
def lived(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ProjectHarness, dict[str, list[dict[str, Any]]]]]:
    """A project in which a job completed with a checkpoint, one failed, and one had to be skipped; and all event lines."""
    with project(tmp_path_factory.mktemp("lived")) as result:
        good = job("mkdir $BT_CHECKPOINT_DIR/checkpoint-7; echo x > $BT_CHECKPOINT_DIR/checkpoint-7/w", "echo done",
                   runtime=KEEPING, weights=["tiny"])  # fmt: skip
        jobs = {"good": good, "bad": job("exit 3"), "wrong": job("true", weights=["moved"])}
        moved = {"source": "file:./moved", "mount_location": "models/moved"}
        write_manifest(result, jobs, weights={**WEIGHTS, "moved": moved})
        result.write({"moved/a": "a"})
        result.run("plan", "--out", "p.bin")
        result.write({"moved/a": "bc"})
        events = {"apply": result.events("apply", "p.bin", "--wait", code=12)}
        events["logs"] = result.events("logs", "good")
        events["run"] = result.events("run", "good", "--auto-approve")
        events["refused"] = result.events("apply", "--auto-approve", "--target", "job.none", code=1)
        result.write({"moved/a": "bcd"})
        events["refresh_error"] = result.events("apply", "p.bin", "--expect", "sha256:0", code=11)
        (result.directory / "other").mkdir()
        result.write({"other/trainctl.yaml": "jobs: {a: {}, b: {}}"})
        events["invalid"] = result.events("apply", "--auto-approve", "-C", "other", code=1)
        yield result, events


def problems(name: str, document: object) -> list[str]:
    """What of a document the schema doesn't allow, where."""
    errors = Draft202012Validator(
        schema(name), format_checker=Draft202012Validator.FORMAT_CHECKER
    ).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


Lived = tuple[ProjectHarness, dict[str, list[dict[str, Any]]]]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("plan", "plan --replace job.good --destroy=false"),
        ("plan", "plan --destroy"),
        ("plan", "plan --refresh-only"),
        ("plan", "show p.bin"),
        ("state", "show"),
        ("status", "status"),
        ("status", "status job.bad"),
        ("mirror", "mirror list"),
        ("checkpoints", "checkpoints list good"),
        ("metrics", "metrics good"),
        ("history", "history"),
        ("validate", "validate"),
    ],
)
def test_outputs_hold_against_their_schemas(lived: Lived, name: str, command: str) -> None:
    """What is printed after a life with successes and failures has every required field, with the right kind of value."""
    created, _ = lived
    document = created.json(*command.split())

    assert problems(name, document) == []
    assert document


def test_event_lines_hold_against_their_schema(lived: Lived) -> None:
    """Each line, of every kind; the last of a command, and only that, is the summary. Progress needs more bytes."""
    _, events = lived
    for command, lines in events.items():
        assert [problems("events", line) for line in lines] == [[]] * len(lines), command
        assert [line["type"] for line in lines].index("summary") == len(lines) - 1
    seen = {line["type"] for lines in events.values() for line in lines}
    assert set(schema("events")["properties"]["type"]["enum"]) - seen <= {"step_progress"}


def test_an_invalid_manifest_is_json_too(lived: Lived, tmp_path: Path) -> None:
    (tmp_path / "trainctl.yaml").write_text("jobs:\n  a: {runtime: {start_command: [x]}}\n")
    created, _ = lived
    document = created.json("validate", "-C", str(tmp_path), code=1)

    assert problems("validate", document) == []
    assert document["valid"] is False
    assert {(row["line"], row["severity"]) for row in document["diagnostics"]} == {(2, "error")}
    assert any("start_commands" in diagnostic["detail"] for diagnostic in document["diagnostics"])


def test_schemas_are_printed(lived: Lived) -> None:
    """schema KIND prints one; without KIND the manifest's; a wrong one names those there are."""
    created, _ = lived
    wrong = created.run("schema", "plans", code=64)

    assert json.loads(created.run("schema", "plan").stdout) == schema("plan")
    assert json.loads(created.run("schema").stdout) == schema("manifest")
    assert all(name in wrong.stderr for name in names())


def test_schemas_refuse_documents_without_a_required_field(lived: Lived) -> None:
    """A schema that allows everything would prove nothing."""
    created, events = lived
    documents = {
        "plan": created.json("plan"),
        "state": created.json("show"),
        "events": events["apply"][-1],
    }
    for name, document in documents.items():
        for field in schema(name)["required"]:
            less = {key: value for key, value in document.items() if key != field}
            assert problems(name, less), (name, field)

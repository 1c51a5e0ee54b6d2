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

APPLY = ("apply", "--auto-approve", "--wait")
KEEPING = {"checkpointing_config": {"enabled": True}, "cache_config": {"enabled": True}}


@pytest.fixture(scope="module")
def lived(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ProjectHarness, dict[str, list[dict[str, Any]]]]]:
    """A project in which a job completed with a checkpoint, one failed, and one had to be skipped; and all event lines."""
    with project(tmp_path_factory.mktemp("lived")) as made:
        good = job("mkdir $BT_CHECKPOINT_DIR/checkpoint-7; echo x > $BT_CHECKPOINT_DIR/checkpoint-7/w", "echo done",
                   runtime=KEEPING, weights=["tiny"])  # fmt: skip
        jobs = {"good": good, "bad": job("exit 3"), "wrong": job("true", weights=["moved"])}
        moved = {"source": "file:./moved", "mount_location": "models/moved"}
        write_manifest(made, jobs, weights={**WEIGHTS, "moved": moved})
        made.write({"moved/a": "a"})
        made.run("plan", "--out", "p.bin")
        made.write({"moved/a": "bc"})
        events = {"apply": made.events("apply", "p.bin", "--wait", code=12)}
        events["logs"] = made.events("logs", "good")
        events["run"] = made.events("run", "good", "--auto-approve")
        events["refused"] = made.events("apply", "--auto-approve", "--target", "job.none", code=1)
        made.write({"moved/a": "bcd"})
        events["refresh_error"] = made.events("apply", "p.bin", "--expect", "sha256:0", code=11)
        (made.directory / "other").mkdir()
        made.write({"other/trainctl.yaml": "jobs: {a: {}, b: {}}"})
        events["invalid"] = made.events("apply", "--auto-approve", "-C", "other", code=1)
        yield made, events


def problems(name: str, document: object) -> list[str]:
    """What of a document the schema doesn't allow, where."""
    found = Draft202012Validator(
        schema(name), format_checker=Draft202012Validator.FORMAT_CHECKER
    ).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


Lived = tuple[ProjectHarness, dict[str, list[dict[str, Any]]]]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("plan", "plan --replace job.good --destroy=false"),
        ("plan", "plan --destroy"),
        ("plan", "plan --refresh-only"),
        ("plan", "plan --offline --refresh=false"),
        ("plan", "show p.bin"),
        ("state", "show"),
        ("status", "status"),
        ("status", "status good"),
        ("status", "status job.bad"),
        ("mirror", "mirror list"),
        ("checkpoints", "checkpoints list good"),
        ("metrics", "metrics good"),
        ("history", "history"),
        ("history", "history job.good"),
        ("validate", "validate"),
    ],
)
def test_outputs_hold_against_their_schemas(lived: Lived, name: str, command: str) -> None:
    """What is printed after a life with successes and failures has every required field, with the right kind of value."""
    made, _ = lived
    document = made.json(*command.split())

    assert problems(name, document) == []
    assert document


@pytest.mark.parametrize("command", ["apply", "logs", "run", "refused", "refresh_error", "invalid"])
def test_event_lines_hold_against_their_schema(lived: Lived, command: str) -> None:
    """Each line by itself; the last, and only the last, is the summary."""
    _, events = lived
    lines = events[command]

    assert {number: problems("events", line) for number, line in enumerate(lines)} == {
        number: [] for number in range(len(lines))
    }
    assert [line["type"] for line in lines].index("summary") == len(lines) - 1


def test_every_kind_of_event_was_seen(lived: Lived) -> None:
    """So the schema is held against real ones; progress needs more bytes than a test moves."""
    _, events = lived
    seen = {line["type"] for lines in events.values() for line in lines}
    kinds = set(schema("events")["properties"]["type"]["enum"])

    assert kinds - seen <= {"step_progress"}


def test_an_invalid_manifest_is_json_too(lived: Lived, tmp_path: Path) -> None:
    """validate says where, and the plan of it fails."""
    (tmp_path / "trainctl.yaml").write_text("jobs:\n  a: {runtime: {start_command: [x]}}\n")
    made, _ = lived
    document = made.json("validate", "-C", str(tmp_path), code=1)

    assert problems("validate", document) == []
    assert document["valid"] is False
    assert {(one["line"], one["severity"]) for one in document["diagnostics"]} == {(2, "error")}
    assert any("start_commands" in one["detail"] for one in document["diagnostics"])


def test_state_pull_is_the_state(lived: Lived) -> None:
    """The same document as show, and what it says is what the other outputs say."""
    made, _ = lived
    pulled = json.loads(made.run("state", "pull").stdout)
    one = made.json("state", "show", "job.good")
    status = made.json("status", "good")

    assert pulled == made.json("show")
    assert problems("state", pulled) == []
    assert one in pulled["resources"]
    assert one["outputs"]["runs"][-1]["id"] == status["run"]
    assert {entry["address"] for entry in pulled["resources"]} == set(
        made.json("state", "list")["addresses"]
    )


def test_schemas_are_printed(lived: Lived) -> None:
    """schema KIND prints each of them; without KIND the manifest's; a wrong one names those there are."""
    made, _ = lived
    printed = {name: json.loads(made.run("schema", name).stdout) for name in names()}
    wrong = made.run("schema", "plans", code=64)

    assert printed == {name: schema(name) for name in names()}
    assert json.loads(made.run("schema").stdout) == schema("manifest")
    assert all(name in wrong.stderr for name in names())


def test_schemas_refuse_what_is_wrong(lived: Lived) -> None:
    """A schema that allows everything would prove nothing: without any one required field nothing is valid."""
    made, events = lived
    documents = {
        "plan": made.json("plan"),
        "state": made.json("show"),
        "history": made.json("history"),
        "events": events["apply"][-1],
        "status": made.json("status", "good"),
        "mirror": made.json("mirror", "list"),
        "checkpoints": made.json("checkpoints", "list", "good"),
        "metrics": made.json("metrics", "good"),
    }
    for name, document in documents.items():
        for field in schema(name).get("required", []):
            assert problems(
                name, {key: value for key, value in document.items() if key != field}
            ), (name, field)
    for name in ("mirror", "checkpoints", "history"):
        key, rows = next(iter(documents[name].items()))
        for field in rows[0]:
            less = {k: v for k, v in rows[0].items() if k != field}
            assert problems(name, {**documents[name], key: [less]}), (name, field)

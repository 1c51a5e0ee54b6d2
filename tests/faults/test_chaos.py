"""Eight appliers on one state, killed at random: nothing is lost, nothing happens twice, nothing is orphaned."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.kill_storm import PATIENCE, Command, KillStorm, check_log
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness, processes, project
from trainctl_state import open_directory

APPLY = ("apply", "--auto-approve", "--format", "json")
PATIENT = (*APPLY, "--lock-timeout", "20s")
DESTROY = ("destroy", "--auto-approve", "--format", "json")
COMPLETED = "TRAINING_JOB_COMPLETED"
JOBS = ("a", "b", "c", "d", "e", "f")
KILLS = 30
SEED = 1
BENIGN = (
    " is locked by ",
    " has changed since the plan was made",
    "the saved plan is stale",
    " does not exist yet",
    " is not mirrored yet",
)
"""What an applier may be told on account of the others,"""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of six short jobs, each of which writes its run's id to a file outside; three need weights."""
    with project(tmp_path) as created:
        yield created


def declared(project: ProjectHarness, turn: int, chance: random.Random) -> None:
    """The manifest of this turn: every job is another configuration than before, and so a new run; some weights are new."""
    diary = project.directory.parent / "diary"
    project.write(
        {
            "weights/model.bin": b"m" * 100_000,
            "data/data.bin": chance.randbytes(3_000_000),
            "data/more.bin": chance.randbytes(1_000),
        }
    )
    needs = {"a": ["model"], "b": ["model", "data"], "c": ["data"]}
    write_manifest(
        project,
        {
            name: job(
                *(f"test -s data/{item}/{item}.bin" for item in needs.get(name, [])),
                f"echo $BT_TRAINING_JOB_ID {turn} >> {diary}-{name}",
                f"sleep {0.1 * number}",
                weights=needs.get(name, []),
                runtime={"cache_config": {"enabled": True}},
            )
            for number, name in enumerate(JOBS)
        },
        weights={
            "model": {"source": "file:./weights", "mount_location": "data/model"},
            "data": {"source": "file:./data", "mount_location": "data/data"},
        },
    )


def commands() -> list[Command]:
    """Eight: the same plan, and different targets; those that wait for others, and those that don't."""
    targets = [["job.a", "job.b"], ["job.c"], ["job.d", "job.e", "job.f"], ["weights.data"]]
    return [
        APPLY,
        APPLY,
        PATIENT,
        (*PATIENT, "--parallelism", "1"),
        *((*PATIENT, *(word for item in some for word in ("--target", item))) for some in targets),
    ]


@pytest.mark.long
def test_nothing_is_lost_doubled_or_orphaned(demo: ProjectHarness) -> None:
    """Each job has one run for each configuration it ever had; each ran once and its end is known; destroy leaves nothing."""
    storm, chance, turns = KillStorm(demo, SEED), random.Random(SEED), 0
    while storm.kills < KILLS:
        turns += 1
        declared(demo, turns, chance)
        storm.run_all(commands())
        check_settled(demo, turns)
    storm.run_all([DESTROY])

    assert strange(storm) == []
    assert remains(demo) == []


def strange(storm: KillStorm) -> list[Any]:
    """Commands that lived to the end and failed for another reason than the other commands."""
    items = []
    for item in storm.ended:
        documents = [json.loads(line) for line in item.out.splitlines()]
        kind = "step_failed" if item.code in (0, 10, 11, 12) else "diagnostic"
        errors = [_told(line) for line in documents if line["type"] in ("step_failed", kind)]
        unknown = [text for text in errors if not any(words in text for words in BENIGN)]
        if unknown or "Traceback" in item.err or not (item.code in (0, 10, 11, 12) or errors):
            items.append(item)
    return items


def _told(line: Mapping[str, Any]) -> str:
    return f"{line['message']}: {line['data'].get('detail', '')}"


def check_settled(project: ProjectHarness, turns: int) -> None:
    """One apply more, and everything is as declared and accounted for."""
    project.run("apply", "--auto-approve", "--wait", seconds=PATIENCE)
    project.run("plan", "--detailed-exitcode", seconds=PATIENCE)
    wait_for(lambda: processes(str(project.nodes)) == [], PATIENCE)
    state = project.json("show")
    assert (state["open_intents"], state["orphaned_intents"]) == ([], [])
    check_state(project, state)
    check_runs(project, state, turns)
    # no half-made files, locks or leases but those that the design leaves to age
    caches = [*project.nodes.glob("*/cache/partial"), *project.nodes.glob("*/cache/locks")]
    assert below(project.mirror / "partial", *caches) == []


def check_state(project: ProjectHarness, state: dict[str, Any]) -> None:
    """The log is sound, and the state is what it folds to."""
    log = open_directory((project.directory / ".trainctl/state").as_uri())
    resources = check_log(log, state["serial"]).resources
    addresses = [resource["address"] for resource in state["resources"]]
    assert sorted(addresses) == sorted(map(str, resources))


def check_runs(project: ProjectHarness, state: dict[str, Any], turns: int) -> None:
    """State, diaries and nodes know the same runs, one a turn, and each ran once."""
    recorded = {
        resource["address"].removeprefix("job."): resource["outputs"]["runs"]
        for resource in state["resources"]
        if resource["address"].startswith("job.")
    }
    assert sorted(recorded) == sorted(JOBS)
    for name, runs in recorded.items():
        assert [run["status"] for run in runs] == [COMPLETED] * turns, name
        diary = (project.directory.parent / f"diary-{name}").read_text().splitlines()
        assert diary == [f"{run['id']} {turn}" for turn, run in enumerate(runs, 1)], name
    known = {run["key"] for runs in recorded.values() for run in runs}
    on_nodes = list(project.nodes.glob("*/runs/*"))
    assert sorted(path.name for path in on_nodes) == sorted(known)
    for path in on_nodes:
        assert len(list(path.glob("claim.*"))) == 1, path
        assert json.loads((path / "run.json").read_text())["status"] == COMPLETED


def below(*places: Path) -> list[str]:
    return sorted(str(path) for place in places for path in place.rglob("*") if not path.is_dir())


def remains(project: ProjectHarness) -> list[Any]:
    """What a destroy should have taken: records, nodes, references, leases, intents; no process is there any more."""
    wait_for(lambda: processes(str(project.directory.parent)) == [], PATIENCE)
    state = project.json("show")
    check_state(project, state)
    return [
        *project.run("state", "list").stdout.splitlines(),
        *project.nodes.iterdir(),
        *below(project.mirror / "references", project.mirror / "partial"),
        *state["open_intents"],
        *state["orphaned_intents"],
    ]

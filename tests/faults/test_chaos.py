"""Eight appliers on one state, killed at random: nothing is lost, nothing happens twice, nothing is orphaned.

``CHAOS_SEED`` is printed and repeats a storm's intentions, ``CHAOS_KILLS`` sets how many kills there are at least. The long form, with its
figures: ``tests/run -m long -s tests/faults/test_chaos.py``.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects.kill_storm import PATIENCE, Command, KillScope, KillStorm, until
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness, processes, project
from tests.support.tiers import SEED, one_day_in
from trainctl.ledger.entries import entry_id, from_json
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import Intent
from trainctl_state import open_directory

APPLY = ("apply", "--auto-approve", "--format", "json")
PATIENT = (*APPLY, "--lock-timeout", "20s")
DESTROY = ("destroy", "--auto-approve", "--format", "json")
COMPLETED = "TRAINING_JOB_COMPLETED"
UNLUCKY = ("TRAINING_JOB_LOST", "TRAINING_JOB_DEPLOY_FAILED")
JOBS = ("a", "b", "c", "d", "e", "f")
BENIGN = (
    " is locked by ",
    " has changed since the plan was made",
    "the saved plan is stale",
    " does not exist yet",
    " is not mirrored yet",
)
"""What an applier may be told on account of the others,"""
OF_NODES = (" failed with signal 9",)
"""and where the programs it started on nodes are killed, too."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of six short jobs, each of which writes its run's id to a file outside; three need weights."""
    with project(tmp_path) as one:
        yield one


def declared(made: ProjectHarness, turn: int, chance: random.Random) -> None:
    """The manifest of this turn: every job is another configuration than before, and so a new run; some weights are new."""
    diary = made.directory.parent / "diary"
    made.write(
        {
            "weights/model.bin": b"m" * 100_000,
            "data/data.bin": chance.randbytes(3_000_000),
            "data/more.bin": chance.randbytes(1_000),
        }
    )
    needs = {"a": ["model"], "b": ["model", "data"], "c": ["data"]}
    write_manifest(
        made,
        {
            name: job(
                *(f"test -s data/{one}/{one}.bin" for one in needs.get(name, [])),
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
        *((*PATIENT, *(word for one in some for word in ("--target", one))) for some in targets),
    ]


STRICT = (KillScope.PROCESS, KillScope.GROUP)
LOOSE = (KillScope.KIN, KillScope.HELPERS)


def kills_of(short: int, long: int) -> pytest.MarkDecorator:
    """How many kills at least."""
    forms = [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.long)]
    return pytest.mark.parametrize("kills", forms)


@kills_of(5, 300)
def test_nothing_is_lost_doubled_or_orphaned(made: ProjectHarness, kills: int) -> None:
    """Each job has one run for each configuration it ever had; each ran once and its end is known; destroy leaves nothing."""
    storm = weather(made, kills, STRICT)

    assert storm.kills > 0
    assert strange(storm, BENIGN) == []
    assert remains(made) == []


@one_day_in(5)
@kills_of(4, 150)
def test_nodes_programs_may_die_too(made: ProjectHarness, kills: int) -> None:
    """A run that was lost or not deployed is known as such and followed by another; still none runs twice, and nothing stays."""
    made.forks = False  # whose nodes' programs are not children of theirs
    storm = weather(made, kills, LOOSE)

    assert storm.kills > 0
    assert strange(storm, (*BENIGN, *OF_NODES)) == []
    assert remains(made) == []


def weather(made: ProjectHarness, kills: int, reaches: Sequence[KillScope]) -> KillStorm:
    """Turn by turn: another configuration, eight appliers in a storm, and everything accounted for; at last destroy in a storm, which is returned."""
    seed = int(os.environ.get("CHAOS_SEED", SEED))
    kills = int(os.environ.get("CHAOS_KILLS", kills))
    print(f"CHAOS_SEED={seed}")
    storm, chance = KillStorm(made, seed, reaches), random.Random(seed)
    began, turns = time.monotonic(), 0
    while storm.kills < kills:
        turns += 1
        declared(made, turns, chance)
        storm.run_all(commands())
        check_settled(made, turns, reaches)
    storm.run_all([DESTROY])
    codes = Counter(one.code for one in storm.ended)
    print(
        f"{storm.kills} of {storm.starts} processes killed and {storm.helpers} that they had started, in {turns} turns of "
        f"{len(JOBS)} jobs, {time.monotonic() - began:.0f} s; the others ended with {dict(codes)}"
    )
    return storm


def strange(storm: KillStorm, benign: Sequence[str]) -> list[Any]:
    """Of those that lived to the end who neither got through nor was told of the others in one of the ``benign`` ways."""
    found = []
    for one in storm.ended:
        told = [json.loads(line) for line in one.out.splitlines()]
        kind = "step_failed" if one.code in (0, 10, 11, 12) else "diagnostic"
        errors = [_told(line) for line in told if line["type"] in ("step_failed", kind)]
        unknown = [text for text in errors if not any(words in text for words in benign)]
        if unknown or "Traceback" in one.err or not (one.code in (0, 10, 11, 12) or errors):
            found.append(one)
    return found


def _told(line: Mapping[str, Any]) -> str:
    return f"{line['message']}: {line['data'].get('detail', '')}"


def check_settled(made: ProjectHarness, turns: int, reaches: Sequence[KillScope]) -> None:
    """One apply more, and everything is as declared and accounted for."""
    made.run("apply", "--auto-approve", "--wait", seconds=PATIENCE)
    made.run("plan", "--detailed-exitcode", seconds=PATIENCE)
    until(lambda: processes(str(made.nodes)) == [], "processes are left on the nodes")
    state = made.json("show")
    assert (state["open_intents"], state["orphaned_intents"]) == ([], [])
    check_log(made, state)
    if set(reaches) <= set(STRICT):
        check_runs(made, state, turns)
        check_files(made)
    else:
        check_runs_and_losses(made, state, turns)


def check_log(made: ProjectHarness, state: dict[str, Any]) -> None:
    """Every entry counted, none twice; the serial only grew; nobody acted on an address that another held."""
    log, fold = open_directory((made.directory / ".trainctl/state").as_uri()), StateReducer()
    seen: set[str] = set()
    for raw in log.replay():
        before, entry = fold.serial, from_json(raw)
        assert entry_id(entry) not in seen, raw
        seen.add(entry_id(entry))
        holding = fold.open.get(entry.address) if isinstance(entry, Intent) else None
        counted = fold.apply(entry)
        assert counted or raw["type"] == "comment" or raw["type"] == "refreshed", raw
        assert fold.serial - before == (raw["type"] in ("outcome", "unlocked")), raw
        assert holding is None or holding.holder != entry.holder, raw  # type: ignore[union-attr]
    assert fold.serial == state["serial"]
    addresses = [one["address"] for one in state["resources"]]
    assert sorted(addresses) == sorted(map(str, fold.resources))
    assert len(set(addresses)) == len(addresses)


def recorded_runs(state: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each job."""
    found = {
        one["address"].removeprefix("job."): one["outputs"]["runs"]
        for one in state["resources"]
        if one["address"].startswith("job.")
    }
    assert sorted(found) == sorted(JOBS)
    return found


def diary(made: ProjectHarness, name: str) -> list[tuple[str, int]]:
    """What the runs of a job wrote: their ids and turns."""
    text = (made.directory.parent / f"diary-{name}").read_text()
    return [(line.split()[0], int(line.split()[1])) for line in text.splitlines()]


def check_runs(made: ProjectHarness, state: dict[str, Any], turns: int) -> None:
    """State, diaries and nodes know the same runs, one a turn, and each ran once."""
    recorded = recorded_runs(state)
    for name, runs in recorded.items():
        assert [run["status"] for run in runs] == [COMPLETED] * turns, name
        assert diary(made, name) == [(run["id"], turn) for turn, run in enumerate(runs, 1)], name
    known = {run["key"] for runs in recorded.values() for run in runs}
    on_nodes = list(made.nodes.glob("*/runs/*"))
    assert sorted(path.name for path in on_nodes) == sorted(known)
    for path in on_nodes:
        assert len(list(path.glob("claim.*"))) == 1, path
        assert json.loads((path / "run.json").read_text())["status"] == COMPLETED


def check_runs_and_losses(made: ProjectHarness, state: dict[str, Any], turns: int) -> None:
    """Each turn has one run that completed, perhaps after others that did not; none ran twice, and none is unknown."""
    recorded = recorded_runs(state)
    for name, runs in recorded.items():
        ended = {run["id"]: run["status"] for run in runs}
        assert set(ended.values()) <= {COMPLETED, *UNLUCKY}, name
        assert runs[-1]["status"] == COMPLETED, name
        written = diary(made, name)
        ran = [run for run, _ in written]
        assert len(set(ran)) == len(ran), name
        assert set(ran) <= ended.keys(), name
        completed = [(run, turn) for run, turn in written if ended[run] == COMPLETED]
        assert [turn for _, turn in completed] == list(range(1, turns + 1)), name
        assert list(ended.values()).count(COMPLETED) == turns, name
    known = {run["key"] for runs in recorded.values() for run in runs}
    assert {path.name for path in made.nodes.glob("*/runs/*")} <= known


def check_files(made: ProjectHarness) -> None:
    """No half-made files, locks or leases but those that the design leaves to age."""
    for place in (
        made.mirror / "partial",
        *made.nodes.glob("*/cache/partial"),
        *made.nodes.glob("*/cache/locks"),
    ):
        assert below(place) == [], place


def below(*places: Path) -> list[str]:
    """Every file under some directories."""
    return sorted(str(path) for place in places for path in place.rglob("*") if not path.is_dir())


def remains(made: ProjectHarness) -> list[Any]:
    """What a destroy should have taken: records, nodes, references, leases, intents; no process is there any more."""
    until(lambda: processes(str(made.directory.parent)) == [], "processes are left")
    state = made.json("show")
    check_log(made, state)
    return [
        *made.run("state", "list").stdout.splitlines(),
        *made.nodes.iterdir(),
        *below(made.mirror / "references", made.mirror / "partial"),
        *state["open_intents"],
        *state["orphaned_intents"],
    ]

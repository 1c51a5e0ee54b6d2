"""States of many runs that have ended, copies of a real one, with points of one of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from tests.support.projects.project import ProjectHarness
from trainctl.base.points import KeyPoints, points_json
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.operations.directories import default_state_url, directory_of
from trainctl.operations.records import POINTS
from trainctl.plugin_api.discovery import open_state
from trainctl.store.objects import DirectoryObjects

MANIFEST = """\
project: {name: bench}
jobs:
  one: {code: ./src, runtime: {start_commands: ["true"]}}
"""


def record_runs(project: ProjectHarness, jobs: int, runs: int, sweep: int = 0) -> str:
    """Apply a job, and record ``jobs`` jobs with ``runs`` runs each, and a sweep; the id of the first one's first run."""
    project.write({"trainctl.yaml": MANIFEST, "src/a.py": ""})
    project.run("apply", "--auto-approve", "--wait")
    ledger = Ledger(open_state(default_state_url(project.directory)), str)
    job = ledger.state().resources[Address.parse("job.one")]
    (run,) = job.outputs["runs"]
    changes = []
    for number in range(jobs):
        copies = [_copy(run, number * runs + at, at + 1) for at in range(runs)]
        changes.append(_change(job, f"job.job-{number:03}", copies, {}))
    for number in range(sweep):
        matrix = {"matrix": [{"name": "lr", "value": f"1e-{number}"}]}
        copies = [_copy(run, jobs * runs + number, 1)]
        changes.append(_change(job, f'job.sweep["lr=1e-{number}"]', copies, matrix))
    ledger.record(changes)
    ledger.flush()
    return str(_copy(run, 0, 1)["id"])


def _copy(run: dict[str, Any], number: int, of_job: int) -> dict[str, Any]:
    point = {"value": 1 / (number + 1), "step": 100}
    results = {"loss": {"last": point, "min": point, "max": point}}
    own = {"key": f"{run['key']}-{number}", "id": f"r{number:06}", "number": of_job}
    return {**run, **own, "reported": {**run["reported"], "results": results}}


def _change(
    job: RecordedResource, address: str, runs: list[dict[str, Any]], more: dict[str, Any]
) -> tuple[IntentRequest, RecordedResource]:
    recorded = replace(
        job,
        address=Address.parse(address),
        attributes={**job.attributes, **more},
        outputs={**job.outputs, "runs": runs},
    )
    values = {"attributes": dict(recorded.attributes)}
    return IntentRequest(recorded.address, "update", job.provider, "k", values), recorded


def record_points(project: ProjectHarness, run_id: str, keys: int, count: int) -> None:
    """Keep points of a run next to the state, as a command does that sees its end."""
    ledger = Ledger(open_state(default_state_url(project.directory)), str)
    jobs = ledger.state().resources.values()
    runs = (run for job in jobs for run in job.outputs.get("runs", ()))
    run = next(run for run in runs if run["id"] == run_id)
    columns = {f"key_{number:02}": KeyPoints() for number in range(keys)}
    for number, points in enumerate(columns.values()):
        for step in range(count):
            points.add(math.sin(step / 500) + number, step, run["started_at"] + step / 10)
    objects = DirectoryObjects(directory_of(default_state_url(project.directory), "state"))
    objects.put(f"{POINTS}/{run['key']}.json", json.dumps(points_json(columns)).encode())

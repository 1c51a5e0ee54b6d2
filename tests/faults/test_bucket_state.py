"""Commands whose state is in a bucket: killed at random, and with a server that loses answers, refuses and throttles."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.kill_storm import KillStorm, check_log
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness, processes, project
from tests.support.servers.bucket_states import Cloud, bucket_log, clouds
from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.fault_proxy import FAULTS

APPLY = ("apply", "--auto-approve", "--wait", "--lock-timeout", "2m", "--format", "json")
STATE = "team/demo"
SEED = 1


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with clouds("s3", tmp_path) as cloud:
        yield cloud


@pytest.fixture
def demo(tmp_path: Path, cloud: Cloud) -> Iterator[ProjectHarness]:
    """A project of two jobs whose state is in the bucket; each run writes its id into a file outside."""
    with project(tmp_path) as created:
        created.variables |= {
            **cloud.environ,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        write_manifest(
            created,
            {name: job(f"echo $BT_TRAINING_JOB_ID >> {tmp_path}/diary") for name in ("a", "b")},
            state={"url": f"{cloud.url}{STATE}"},
        )
        yield created


@pytest.mark.long
def test_two_applies_and_a_killer(demo: ProjectHarness, cloud: Cloud, tmp_path: Path) -> None:
    """Each job runs once however often both applies are killed and whatever the server answers; nobody needs force-unlock."""
    chance = random.Random(SEED)
    cloud.proxy.decide = lambda: chance.choice(FAULTS) if chance.random() < 0.2 else None
    storm = KillStorm(demo, SEED)
    while storm.kills < 8:
        storm.run_all([APPLY, APPLY])
        cloud.proxy.decide = lambda: None
        demo.run("plan", "--detailed-exitcode")
        state = demo.json("show")
        assert (state["open_intents"], state["orphaned_intents"]) == ([], [])
        runs = [
            run
            for resource in state["resources"]
            if resource["address"].startswith("job.")
            for run in resource["outputs"]["runs"]
        ]
        diary = (tmp_path / "diary").read_text().split()
        assert sorted(diary) == sorted(run["id"] for run in runs)
        assert len(runs) == 2
        check_log(bucket_log(cloud, STATE), state["serial"])
        demo.run("destroy", "--auto-approve")
        (tmp_path / "diary").unlink()
    assert processes(str(demo.nodes)) == []

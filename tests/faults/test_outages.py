"""Hosts that lose power or link, or freeze, and operators that are killed, in every phase of a job's life.

Afterwards the next applies complete the job, with every rank's output and checkpoints, and a destroy leaves no process, mount or file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.hosts import HostLab, client_project, host_lab
from tests.support.machines.outages import Outage, OutageScenario

OUTAGES = (
    Outage("cluster", "cut", hosts=1, seconds=5, mirror_on_host=True),
    Outage("cluster", "power", hosts=2, mirror_on_host=True),
    Outage("weights", "power", hosts=1, mirror_on_host=True),
    Outage("weights", "operator", hosts=2, mirror_on_host=True),
    Outage("job", "freeze", hosts=4, seconds=8),
    Outage("job", "operator", hosts=2, mirror_on_host=True),
    Outage("running", "freeze", hosts=2, seconds=5, mirror_on_host=True),
    Outage("collecting", "power", hosts=2),
    Outage("destroying", "operator", hosts=2),
    Outage("destroying", "cut", hosts=1, mirror_on_host=True),
)
SUITE = Outage("job", "cut", hosts=2, mirror_on_host=True)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Hosts, made when they are needed."""
    with host_lab(tmp_path_factory.mktemp("lab"), 0) as made:
        yield made


@pytest.mark.parametrize(
    "outage",
    [SUITE, *(pytest.param(outage, marks=pytest.mark.long) for outage in OUTAGES)],
    ids=str,
)
def test_an_outage_leaves_nothing_behind_and_the_next_apply_completes_the_job(
    lab: HostLab, tmp_path: Path, outage: Outage
) -> None:
    while len(lab.hosts) < outage.hosts:
        lab.host()
    with client_project(lab, tmp_path) as made:
        assert OutageScenario(made, lab.hosts[: outage.hosts], outage).live() == []

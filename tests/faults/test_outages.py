"""Hosts that lose power or link, or freeze, and operators that are killed, in every phase of a job's life on 1, 4 and 8 hosts.

Afterwards the next applies bring the job to its end, with every rank's output and checkpoints, and a destroy leaves no process, mount or file.
What is drawn changes every day; ``OUTAGE_SEED`` is printed and repeats it. The long form, all phases and faults on all sizes, with both places of a mirror: ``tests/run -m long -s tests/faults/test_outages.py``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.machines.hosts import HostLab, client_project, host_lab
from tests.support.machines.outages import FAULTS, KEPT, PHASES, Outage, OutageScenario

SIZES = (1, 4, 8)
SEED = int(os.environ.get("OUTAGE_SEED", tiers.SEED))
DRAWS = 1


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Hosts, made when they are needed."""
    with host_lab(tmp_path_factory.mktemp("lab"), 0) as made:
        yield made


def live(lab: HostLab, top: Path, outage: Outage) -> list[str]:
    """The whole life of a job with this outage; what is left of it."""
    print(f"OUTAGE_SEED={SEED} {outage}")
    while len(lab.hosts) < outage.hosts:
        lab.host()
    began = time.monotonic()
    with client_project(lab, top) as made:
        left = OutageScenario(made, lab.hosts[: outage.hosts], outage).live()
    print(f"{time.monotonic() - began:.0f} s")
    return left


@pytest.mark.parametrize("draw", range(DRAWS))
def test_what_goes_wrong_comes_right(lab: HostLab, tmp_path: Path, draw: int) -> None:
    """One fault in one phase, drawn: the next applies and destroys converge, and nothing is left behind."""
    chance = random.Random(f"{SEED} {draw}")
    phase, fault = chance.choice(PHASES), chance.choice(FAULTS)
    hosts, kept = chance.choice((1, 2)), chance.choice(KEPT)
    assert live(lab, tmp_path, Outage.drawn(chance, phase, fault, hosts, kept)) == []


@pytest.mark.long
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_fault_in_every_phase_comes_right(
    lab: HostLab, tmp_path: Path, phase: str, fault: str, hosts: int, kept: str
) -> None:
    """All of them, with a mirror on the operator's machine and with one on the first host."""
    chance = random.Random(f"{SEED} {phase} {fault} {hosts}")
    assert live(lab, tmp_path, Outage.drawn(chance, phase, fault, hosts, kept)) == []

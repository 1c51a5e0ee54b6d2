"""GPUs of AMD, by what ``rocm-smi`` of several ages says: which there are, which are claimed, and on which somebody computes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.gpus import WARNING, FakeAmdGpus
from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.node.system import gpus

pytestmark = pytest.mark.integration

Make = Callable[..., FakeAmdGpus]
SHOW = "echo $BT_NUM_GPUS: $HIP_VISIBLE_DEVICES"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the machine's cards."""

    def make(count: int = 2, **how: Any) -> FakeAmdGpus:
        made = FakeAmdGpus.make(tmp_path / "tools", count, **how)
        monkeypatch.setenv("PATH", f"{made.tools}:{os.environ['PATH']}")
        return made

    return make


def wants(count: int) -> dict[str, Any]:
    """Of a specification: so many GPUs."""
    return {"count": count, "kind": "", "declared": None}


@pytest.mark.parametrize("unique", ["N/A", "", "0x0", "0x59f03e0beb4e0a04"])
def test_cards_without_an_id_of_their_own_are_two(
    node: NodeHarness, cards: Make, unique: str
) -> None:
    """Known by where they are on the bus; so are partitions of one GPU, which all say the same id."""
    cards(unique=unique)

    node.run(SHOW, gpus=wants(2))

    assert node.log() == "2: 0,1\n"


def test_an_id_of_its_own_names_a_card(cards: Make) -> None:
    """Wherever it is put."""
    cards(1, unique="0x59f03e0beb4e0a04")

    assert [one.id for one in gpus.list_gpus()] == ["0x59f03e0beb4e0a04"]


def test_warnings_before_the_json_are_no_answer(node: NodeHarness, cards: Make) -> None:
    """Cards that sleep are cards, for claims and for what is measured."""
    made = cards(before=WARNING)

    found = node.call("inspect", {"gpus": None})

    assert (found["gpus_problem"], [one["uuid"] for one in found["gpus"]]) == (None, made.buses)
    assert [one.memory_total for one in gpus.list_gpus()] == [17163091968] * 2


def test_a_card_that_another_process_uses_is_taken(node: NodeHarness, cards: Make) -> None:
    """It is left out, and whoever asks is told by whom; a process without queues on any card uses none."""
    made = cards(3)
    made.compute({os.getpid(): [0], 1: []}, before=WARNING)

    node.run(SHOW, gpus=wants(2))

    assert node.log() == "2: 1,2\n"
    users = [one["used_by"] for one in node.call("inspect", {"gpus": None})["gpus"]]
    assert users == [f"PID {os.getpid()}", None, None]


def test_a_run_waits_for_a_card_that_another_process_uses(node: NodeHarness, cards: Make) -> None:
    """Until that one leaves it."""
    made = cards(2)
    made.compute({os.getpid(): [0, 1]})
    node.start(node.spec(SHOW, gpus=wants(1)))
    wait_for(lambda: node.status()["status"] == "TRAINING_JOB_PENDING")

    made.compute({})

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"


def test_cards_of_one_process_may_stand_in_one_line(cards: Make) -> None:
    """As earlier versions write them; with a list that goes on in the next line."""
    made = cards(3)
    text = (
        "============================= GPUs Indexed by PID ==============================\n"
        "PID 999999998 is using 3 DRM device(s):\n0 1 \n2 \n"
        "PID 999999999 is using 1 DRM device(s):\n0 \n"
        "================================================================================\n"
    )
    (made.tools / "used").write_text(text)

    assert gpus.gpu_users(gpus.list_gpus()) == dict.fromkeys(made.buses, "999999998")

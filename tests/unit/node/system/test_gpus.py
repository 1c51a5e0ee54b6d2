"""GPUs of AMD, by the output of ``rocm-smi`` of several versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.gpus import WARNING, FakeAmdGpus
from tests.support.node_program.nodes import NodeHarness
from trainctl.node.system import gpus

pytestmark = pytest.mark.integration

Make = Callable[..., FakeAmdGpus]


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(count: int = 2, **how: Any) -> FakeAmdGpus:
        gpus = FakeAmdGpus.make(tmp_path / "tools", count, **how)
        monkeypatch.setenv("PATH", f"{gpus.tools}:{os.environ['PATH']}")
        return gpus

    return make


@pytest.mark.parametrize("unique", ["N/A", "", "0x0", "0x59f03e0beb4e0a04"])
def test_cards_without_an_id_of_their_own_are_known_by_their_bus(cards: Make, unique: str) -> None:
    """So are partitions of one GPU, which all report the same id."""
    created = cards(unique=unique, before=WARNING)

    result = gpus.list_gpus()

    assert [gpu.id for gpu in result] == created.buses
    assert [gpu.memory_total for gpu in result] == [17163091968] * 2


def test_a_card_is_known_by_its_unique_id(cards: Make) -> None:
    cards(1, unique="0x59f03e0beb4e0a04")

    assert [gpu.id for gpu in gpus.list_gpus()] == ["0x59f03e0beb4e0a04"]


def test_a_card_that_another_process_uses_is_not_claimed(node: NodeHarness, cards: Make) -> None:
    """A process without queues on any card uses none."""
    created = cards(3)
    created.compute({os.getpid(): [0], 1: []}, before=WARNING)

    node.run(
        "echo $BT_NUM_GPUS: $HIP_VISIBLE_DEVICES",
        compute={"accelerator": "Radeon:2"},
        declared_gpus=None,
    )

    assert node.log() == "2: 1,2\n"
    users = [gpu["used_by"] for gpu in node.call("inspect", {"gpus": None})["gpus"]]
    assert users == [f"PID {os.getpid()}", None, None]

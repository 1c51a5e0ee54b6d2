"""Samples of what a run uses."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.errors import TrainctlError
from trainctl.node.metrics import sampler as metrics
from trainctl.node.system import gpus

pytestmark = pytest.mark.integration

SMI = """\
echo "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 93, 70000, 81559"
echo "1, GPU-bbbb, NVIDIA H100, [N/A], 0, 81559"
"""
ROCM = """\
echo '{"card0": {"GPU use (%)": "7", "VRAM Total Memory (B)": "1000", "VRAM Total Used Memory (B)": "10"}, "system": {}}'
"""


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}")
    (folder / name).chmod(0o755)


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the beginning of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def samples(node: NodeHarness) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = node.call("metrics", {"key": "run-1"})["samples"]
    return samples


def test_a_short_run_has_a_first_and_a_last_sample(node: NodeHarness, tmp_path: Path) -> None:
    busy = "python3 -c \"import time\nwhile time.process_time() < 0.3: pass\nopen('big', 'wb').write(b'x' * 1000000)\""
    seen = tmp_path / "seen"
    node.start(node.spec(f"while ! test -e {seen}; do sleep 0.05; done", busy))
    wait_for(lambda: samples(node))  # the first sample is taken at once
    seen.touch()
    node.ended()
    rows = samples(node)

    assert len(rows) >= 2
    assert rows[-1]["cpu_seconds"] >= 0.3
    assert rows[-1]["processes"] == 0
    assert rows[-1]["ephemeral_storage"]["usage_bytes"] >= 1_000_000
    assert 0 < rows[-1]["ephemeral_storage"]["utilization"] <= 1
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert rows[-1]["host"]["memory_total_bytes"] > rows[-1]["host"]["memory_available_bytes"] > 0
    assert node.call("metrics", {"key": "run-1", "since": rows[-1]["time"]})["samples"] == []


def test_memory_is_that_of_the_whole_tree(node: NodeHarness) -> None:
    hold = "import time; block = b'x' * 80_000_000; time.sleep(60)"
    node.start(node.spec(f'setsid python3 -c "{hold}" & python3 -c "{hold}"'))
    result = wait_for(
        lambda: next((row for row in samples(node) if row["cpu_memory_usage_bytes"] > 1.6e8), None)
    )

    assert result["cpu_memory_usage_bytes"] < 3e8
    assert 2 <= result["processes"] <= 4


def test_gpus_that_the_job_may_use(node: NodeHarness, bin_: Path) -> None:
    program(bin_, "nvidia-smi", SMI)
    node.start(node.spec("sleep 60", environment={"CUDA_VISIBLE_DEVICES": "0"}))
    result = wait_for(lambda: samples(node))[0]

    assert result["gpu_utilization"] == {"0": 0.93}
    assert result["gpu_memory_usage_bytes"] == {"0": 70000 * 2**20}
    assert result["gpu_names"] == {"0": "NVIDIA H100 80GB HBM3"}


def test_gpus_of_both_vendors(bin_: Path) -> None:
    program(bin_, "nvidia-smi", SMI)
    both = gpus.list_gpus()
    assert [(item.number, item.utilization) for item in both] == [(0, 0.93), (1, None)]
    assert gpus.visible_gpus(both, {"NVIDIA_VISIBLE_DEVICES": "all"}) == both
    assert gpus.visible_gpus(both, {"CUDA_VISIBLE_DEVICES": "GPU-bb"}) == both[1:]
    assert gpus.visible_gpus(both, {}) == both
    program(bin_, "nvidia-smi", "exit 6")
    program(bin_, "rocm-smi", ROCM)
    (card,) = gpus.list_gpus()
    assert (card.utilization, card.memory_used, card.memory_total) == (0.07, 10, 1000)
    program(bin_, "rocm-smi", "exit 9")
    with pytest.raises(TrainctlError, match="rocm-smi failed with exit code 9"):
        gpus.list_gpus()


def test_a_program_that_hangs_holds_up_nobody(node: NodeHarness, bin_: Path) -> None:
    program(bin_, "nvidia-smi", f"echo x >> {bin_}/asked\ntrap '' TERM\nexec sleep 600\n")
    gate = node.base / "gate"
    node.start(node.spec(f"while [ ! -e {gate} ]; do sleep 0.05; done"))
    result = wait_for(lambda: [sample for sample in samples(node) if sample.get("problem")], 60)
    wait_for(lambda: len(samples(node)) > 1, 60)
    gate.touch()

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert "nvidia-smi timed out" in result[0]["problem"]
    assert (bin_ / "asked").read_text() == "x\n"
    assert "gpu_utilization" not in samples(node)[-1]


def test_a_history_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in range(12_000):
        metrics._append(path, {"time": number, "host": {}, "more": "x" * 400})
    times = [row["time"] for row in metrics._read(path)]
    half = len(times) // 2

    assert path.stat().st_size <= metrics.HISTORY_BYTES
    assert times[0] == 0
    assert times[-half:] == list(range(12_000 - half, 12_000))
    assert times == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps, reverse=True)

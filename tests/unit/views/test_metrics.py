"""What runs use, on the screen and for programs."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.views.test_json_forms import problems
from trainctl.model.address import Address
from trainctl.model.reports import RankSample
from trainctl.model.run import RunRecord, RunStatus
from trainctl.views.jobs.metrics import metrics_csv, metrics_json, metrics_lines, sample_json
from trainctl.views.terminal.tables import csv_lines

SFT = Address.parse("job.sft")
RUN = RunRecord("abcdefg", 3, "key", status=RunStatus.RUNNING)
HOST = {
    "cpu_count": 8, "cpu_seconds": 5.0, "memory_total_bytes": 100_000_000_000,
    "memory_available_bytes": 25_000_000_000, "network_received_bytes": 1, "network_sent_bytes": 2,
}  # fmt: skip


def sample(time: float, cpu: float | None, rank: int = 0, **more: Any) -> RankSample:
    """One as a node tells it."""
    row = {
        "time": time, "cpu_usage": cpu, "cpu_seconds": 9.0, "cpu_memory_usage_bytes": int(time) * 10**9,
        "processes": 4, "host": HOST, **more,
    }  # fmt: skip
    return RankSample.of(rank, f"lab/gpu-{rank}", row)


def gpus(busy: float | None, used: int) -> dict[str, Any]:
    """Two GPUs, of which the first says everything."""
    return {
        "gpu_names": {"0": "H100", "1": "H100"},
        "gpu_utilization": {"0": busy, "1": None},
        "gpu_memory_usage_bytes": {"0": used, "1": None},
        "gpu_memory_total_bytes": {"0": 80_000_000_000, "1": None},
    }


FULL = {"usage_bytes": 5_000_000, "utilization": 0.95, "free_bytes": 1000}
UNKNOWN = {"usage_bytes": None, "utilization": 0.5, "free_bytes": 1000}
SAMPLES = [
    sample(1, None, ephemeral_storage=UNKNOWN),
    sample(2, 7.5, ephemeral_storage=FULL, cache=UNKNOWN, **gpus(0.99, 79_000_000_000)),
    sample(3, 0.5, ephemeral_storage=UNKNOWN, problem="nvidia-smi timed out after 5 s"),
    sample(3, 2.0, 1),
]


def tagged(text: str, name: str) -> str:
    """A style that can be read."""
    return f"<{name}>{text}</{name}>" if name != "dim" else text


def test_the_present_is_a_table() -> None:
    """The newest look at each rank, and how old it is; what could not be measured is told."""
    lines = metrics_lines(SFT, RUN, SAMPLES, tagged, 15.0)

    assert lines[0] == "job.sft  run 3 (abcdefg)  running, 12 s ago"
    assert lines[2].split("  ")[1:3] == ["0   ", " lab/gpu-0"] or "lab/gpu-0" in lines[2]
    assert "0.5 of 8 cores" in lines[2]
    assert "2.0 of 8 cores" in lines[3]
    assert lines[-1] == "  rank 0: nvidia-smi timed out after 5 s"
    assert metrics_lines(SFT, RUN, [], tagged, 1.0)[1] == "  No samples yet."


def test_an_ended_run_shows_the_most_that_it_used() -> None:
    """Of everything by itself, as its last look saw a run that was over."""
    text = "\n".join(
        metrics_lines(SFT, replace(RUN, status=RunStatus.COMPLETED), SAMPLES, tagged, 9.0)
    )

    assert "completed, peak usage" in text
    assert "7.5 of 8 cores" in text
    assert "5.0 MB, 50 % full" in text
    assert "99 %" in text


def test_what_is_nearly_full_is_coloured() -> None:
    """Above 70 % yellow, above 90 % red: memory, disks and the memory of GPUs, but not a GPU that works hard."""
    text = "\n".join(metrics_lines(SFT, RUN, SAMPLES[:2], tagged, 9.0))

    assert "<yellow>75 % of 100 GB</yellow>" in text
    assert "<red>5.0 MB, 95 % full</red>" in text
    assert "<red>79.0 GB of 80.0 GB</red>" in text
    assert "<red>99 %" not in text
    assert "<yellow>50 %" not in text


def test_the_history_holds_against_its_schema() -> None:
    """As a whole and sample by sample, with GPUs and without."""
    document = metrics_json(SFT, RUN, SAMPLES)

    assert problems("metrics", document) == []
    assert [problems("metrics", sample_json(one)) for one in SAMPLES] == [[]] * 4
    assert document["samples"][1]["gpu_utilization"] == {"0": 0.99, "1": None}
    assert document["samples"][0]["cache"] is None


def test_csv_has_a_column_for_each_gpu() -> None:
    """Empty where there is none or nothing is known."""
    rows = list(csv.DictReader(csv_lines(*metrics_csv(SAMPLES))))

    assert [row["cpu_usage"] for row in rows] == ["", "7.5", "0.5", "2.0"]
    assert [row["gpu0_utilization"] for row in rows] == ["", "0.99", "", ""]
    assert rows[1]["gpu1_memory_usage_bytes"] == ""
    assert rows[1]["ephemeral_storage_utilization"] == "0.95"


@pytest.mark.parametrize("column", ["HOST MEMORY", "GPU MEMORY", "DISK", "CACHE"])
def test_columns_are_there_where_they_say_something(column: str) -> None:
    """GPUs, disks and caches only of runs that have them."""
    with_all = "\n".join(metrics_lines(SFT, RUN, SAMPLES[:2], tagged, 9.0))
    without = "\n".join(metrics_lines(SFT, RUN, SAMPLES[3:], tagged, 9.0))

    assert column in with_all
    assert (column in without) is (column == "HOST MEMORY")

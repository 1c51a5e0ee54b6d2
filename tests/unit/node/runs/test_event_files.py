"""Scalars in event files of TensorBoard."""

from __future__ import annotations

import base64
import json
import math
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.node_program.nodes import NodeHarness
from trainctl.node.runs.event_files import read_scalars
from trainctl.node.runs.points import points_of, update_results
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

pytestmark = pytest.mark.integration

WRITTEN = """\
SAAAAAAAAAD+kkidCQe4MZQww9pBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2Zp
bGVfd3JpdGVyIUxiEBoAAAAAAAAAEpvYLQkAAABA/FTZQRABKg0KCwoEbG9zcxUAAAA/jbAuOS0AAAAAAAAAPEGK+wkAAEBA/FTZ
QRCsAiofCh0KBGxvc3NCCAgBKgQAAIA+SgsKCQoHc2NhbGFyc4yGSJAoAAAAAAAAAP9wFkoJAACAQPxU2UEQ/v//////////ASoS
ChAKCWV2YWwvbG9zcxUAAMC/mK/F2T0AAAAAAAAAYEnx7AkAAMBA/FTZQRADKjAKLgoRbm90ZS90ZXh0X3N1bW1hcnlCDwgHEgQS
AggBQgVoZWxsb0oICgYKBHRleHRKblzg
"""
"""Of ``torch.utils.tensorboard`` 2.13: a plain scalar, one as a tensor, one with a negative step, and a text."""

SCALARS = [
    ("loss", 0.5, 1, 1.7e9),
    ("loss", 0.25, 300, 1.7e9 + 1),
    ("eval/loss", -1.5, -2, 1.7e9 + 2),
]
DATA = base64.b64decode(WRITTEN)


def test_scalars_of_a_file_that_grows(tmp_path: Path) -> None:
    """In whatever pieces it is written, each scalar is read once."""
    path = tmp_path / "events.out.tfevents.1"
    for end in range(len(DATA) + 1):
        path.write_bytes(DATA[:end])
        first, offset = read_scalars(str(path), 0)
        path.write_bytes(DATA)
        rest, last = read_scalars(str(path), offset)
        assert (first + rest, last) == (SCALARS, len(DATA))


@given(st.integers(0, len(DATA) - 1), st.binary(max_size=12))
def test_corrupt_files(tmp_path_factory: pytest.TempPathFactory, at: int, change: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "events"
    path.write_bytes(DATA[:at] + change + DATA[at + len(change) :])
    found, offset = read_scalars(str(path), 0)
    assert offset <= path.stat().st_size
    assert len(found) <= len(SCALARS)
    assert read_scalars(str(path), offset)[1] == offset


def test_what_follows_a_large_record_is_read(tmp_path: Path) -> None:
    """Such as a graph or images; one that isn't complete is read later."""
    path, size = tmp_path / "events.out.tfevents.1", 2**22
    large = struct.pack("<QI", size, 0) + bytes(size + 4)
    path.write_bytes(large[:-1])
    assert read_scalars(str(path), 0) == ([], 0)
    path.write_bytes(large + DATA)
    _, offset = read_scalars(str(path), 0)
    assert read_scalars(str(path), offset) == (SCALARS, len(large + DATA))


def test_a_scalar_without_a_time_is_no_point(tmp_path: Path) -> None:
    """As JSON can't have it."""
    path, run = tmp_path / "events", NodeRun(Layout(str(tmp_path)), "run")
    loss = b"\x0a\x04loss\x15\x00\x00\x00\x3f"
    run.directory.mkdir(parents=True)
    for at in (math.nan, math.inf, 1.7e9):
        event = b"\x09" + struct.pack("<d", at) + b"\x2a" + bytes([len(loss) + 2, 10, len(loss)]) + loss  # fmt: skip
        with path.open("ab") as stream:
            stream.write(struct.pack("<QI", len(event), 0) + event + bytes(4))
    run.disk_usage.write_text(json.dumps({"event_files": [str(path)]}))
    update_results(run)
    assert [of.count for of in points_of(run).values()] == [1]


def test_other_things_than_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("fifo", "link", "missing"):
        assert read_scalars(str(tmp_path / name), 7) == ([], 7)


def test_a_run_that_writes_event_files(node: NodeHarness) -> None:
    """A directory like that of Keras tells equal tags apart; what the job reports itself is not replaced.

    What another run left in the project's cache is none of its results.
    """
    other = node.base / "cache/test/events.out.tfevents.1"
    other.parent.mkdir(parents=True)
    other.write_bytes(DATA)
    write = (
        "mkdir -p logs/{0} && base64 -d >logs/{0}/events.out.tfevents.1 <<'END'\n" + WRITTEN + "END"
    )
    own = """echo '{"step": 7, "eval/loss": 9}' >>$TRAINCTL_PROGRESS"""
    cache = {"BT_PROJECT_CACHE_DIR": str(node.base / "cache")}
    node.start(node.spec(own, write.format("today"), write.format("validation"), environment=cache))
    assert node.ended()["results"] == {
        "loss": {
            "last": {"value": 0.25, "step": 300},
            "min": {"value": 0.25, "step": 300},
            "max": {"value": 0.5, "step": 1},
        },
        "validation/loss": {
            "last": {"value": 0.25, "step": 300},
            "min": {"value": 0.25, "step": 300},
            "max": {"value": 0.5, "step": 1},
        },
        "eval/loss": {point: {"value": 9, "step": 7} for point in ("last", "min", "max")},
        "validation/eval/loss": {
            point: {"value": -1.5, "step": -2} for point in ("last", "min", "max")
        },
    }

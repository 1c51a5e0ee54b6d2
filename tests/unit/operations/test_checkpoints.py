"""Which checkpoint is meant, and what a node may call one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainctl.errors import NodeError, UsageError
from trainctl.ledger.state import Recorded
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.model.status import Checkpoint
from trainctl.operations.checkpoints import _checkpoint, _choose, _Stream
from trainctl.operations.runs import Run

RUN = Run(
    Recorded(Address.parse("job.sft"), "local", {"project": "demo"}, {}), RunRecord("abc", 1, "k")
)


def checkpoint(name: str, *, rank: int = 0, complete: bool = True) -> Checkpoint:
    """A checkpoint of the run."""
    return Checkpoint(name, "abc", rank, None, 1, 1, complete, 0.0, "node://lab/lab-0/x")


def row(name: str) -> dict[str, Any]:
    """What a node says of one."""
    return {
        "name": name, "rank": 0, "step": None, "bytes": 1, "files": 1, "complete": True,
        "created_at": 0.0, "node": "lab/lab-0", "directory": "/data/x",
    }  # fmt: skip


def test_the_newest_complete_one_is_meant() -> None:
    """Of the wanted rank; one that is being written is taken only by name."""
    found = [
        checkpoint("checkpoint-1"),
        checkpoint("checkpoint-2"),
        checkpoint("checkpoint-3", complete=False),
        checkpoint("checkpoint-9", rank=1),
    ]
    assert _choose(found, RUN, None, 0).name == "checkpoint-2"
    assert _choose(found, RUN, None, 1).name == "checkpoint-9"
    assert _choose(found, RUN, "checkpoint-3", 0).name == "checkpoint-3"


@pytest.mark.parametrize(
    ("name", "rank", "said"),
    [
        ("checkpoint-9", 0, "no checkpoint checkpoint-9 of rank 0"),
        (None, 1, "no complete checkpoint of rank 1"),
    ],
)
def test_one_that_is_not_there_is_named(name: str | None, rank: int, said: str) -> None:
    """With what there is instead."""
    with pytest.raises(UsageError) as caught:
        _choose([checkpoint("checkpoint-1")], RUN, name, rank)
    assert said in caught.value.summary
    assert caught.value.detail == "It has: checkpoint-1."


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", "../../x", ""])
def test_a_name_that_leaves_the_directory_is_refused(name: str) -> None:
    """A node that lies can't make a download write elsewhere."""
    with pytest.raises(NodeError, match="lab/lab-0 names a checkpoint"):
        _checkpoint(row(name), RUN)


@pytest.mark.parametrize("name", ["checkpoint-10", ".", "a b", "..x", "-x"])
def test_other_names_are_fine(name: str) -> None:
    """Among them the one of files that lie in the checkpoint directory itself."""
    assert _checkpoint(row(name), RUN).name == name


def test_a_stream_is_read_as_a_tar(tmp_path: Path) -> None:
    """Pieces of any size are put together."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("model.bin")
        info.size = 100_000
        tar.addfile(info, io.BytesIO(bytes(range(250)) * 400))
    data = packed.getvalue()

    def cut() -> Iterator[bytes]:
        for start in range(0, len(data), 777):
            yield data[start : start + 777]

    with tarfile.open(fileobj=_Stream(cut()), mode="r|") as tar:
        tar.extractall(tmp_path, filter="data")
    assert (tmp_path / "model.bin").read_bytes() == bytes(range(250)) * 400

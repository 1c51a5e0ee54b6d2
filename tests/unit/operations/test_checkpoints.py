"""Which checkpoint is meant, what a store may call one, and files that arrive one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainctl.errors import NodeError, StorageError, UsageError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.operations.runs.checkpoints import checkpoint_from, file_writer, select_checkpoint
from trainctl.operations.runs.lookup import JobRun

RUN = JobRun(
    RecordedResource(Address.parse("job.sft"), "local", {"project": "demo"}, {}),
    RunRecord("abc", 1, "k"),
)


def row(name: str, at: float = 0.0, *, rank: int = 0, state: str = "complete") -> dict[str, Any]:
    """A checkpoint as a node or a store reports it."""
    return {
        "name": name, "rank": rank, "step": None, "bytes": 1, "files": 1, "state": state, "created_at": at,
        "node": "lab/lab-0", "url": "file:///store/x",
    }  # fmt: skip


ROWS = [
    row("checkpoint-1", 1.0),
    row("checkpoint-2", 2.0),
    row("checkpoint-3", 3.0, state="uploading"),
    {**row("checkpoint-4", 4.0, state="unfinished"), "unfinished": "x"},
    row("checkpoint-9", 9.0, rank=1),
]


def test_the_newest_complete_checkpoint_is_selected() -> None:
    """Of the rank, or the one with that name; if there is none, the error lists the others."""
    assert select_checkpoint(ROWS, RUN, None, 0)["name"] == "checkpoint-2"
    assert select_checkpoint(ROWS, RUN, None, 1)["name"] == "checkpoint-9"
    assert select_checkpoint(ROWS, RUN, "checkpoint-1", 0)["name"] == "checkpoint-1"
    for name, rank, summary in (
        ("checkpoint-9", 0, "no complete checkpoint checkpoint-9 of rank 0"),
        ("checkpoint-3", 0, "no complete checkpoint checkpoint-3 of rank 0"),
        ("checkpoint-4", 0, "no complete checkpoint checkpoint-4 of rank 0"),
        (None, 2, "no complete checkpoint of rank 2"),
    ):
        with pytest.raises(UsageError, match=summary) as caught:
            select_checkpoint(ROWS, RUN, name, rank)
        assert (
            "checkpoint-3 (uploading), checkpoint-4 (unfinished: x; download" in caught.value.detail
        )
    assert select_checkpoint(ROWS, RUN, "checkpoint-4", 0, force=True)["name"] == "checkpoint-4"
    assert select_checkpoint(ROWS, RUN, None, 0, force=True)["name"] == "checkpoint-2"


@pytest.mark.parametrize("name", ["..", "a//b", "/etc", "../../x", ""])
def test_a_name_that_leaves_the_directory_is_refused(name: str) -> None:
    """A node that lies can't make a download write elsewhere."""
    with pytest.raises(NodeError, match=r"invalid checkpoint name .* from lab/lab-0"):
        checkpoint_from(row(name), RUN)
    for valid in ("checkpoint-10", ".", "a b", "..x", "-x"):
        assert checkpoint_from(row(valid), RUN).name == valid


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_files_of_a_stream_are_separated_by_their_sizes(tmp_path: Path, piece: int) -> None:
    """However it is cut; with empty files, and one whose beginning is there already."""
    contents = {"a": b"", "b": b"hello", "c": b"", "d": b"more of it", "e": b""}
    (tmp_path / "d").write_bytes(b"more")
    wanted = [
        ({"size": len(data)}, tmp_path / name, 4 if name == "d" else 0)
        for name, data in contents.items()
    ]
    writer = file_writer(wanted)
    next(writer)
    stream = b"hello of it"
    for at in range(0, len(stream), piece):
        writer.send(stream[at : at + piece])

    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    with pytest.raises(StorageError, match="received more bytes"):
        writer.send(b"x")

"""Telling a failure from what it does to others, by the last lines of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.node.rendezvous.member import is_consequence
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

SUFFERED = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /c10d/store",
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.",
    "[W socket.cpp:697] [c10d] The client socket has failed to connect to [10.0.0.1]:29500 (errno: 111 - Connection refused).",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
]
OWN = [
    "ValueError: loss is not a number",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "AssertionError",
    "./train.sh: line 3: nonsense: command not found",
    "Segmentation fault (core dumped)",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
    "",
]


@pytest.mark.parametrize("line", SUFFERED)
def test_a_broken_connection_or_collective_is_a_consequence(line: str) -> None:
    """What gloo, NCCL, torch.distributed and sockets say when the other side has gone."""
    assert is_consequence(f"Traceback (most recent call last):\n{line}\n")


@pytest.mark.parametrize("line", OWN)
def test_other_errors_are_a_rank_s_own(line: str) -> None:
    """What ends a rank that nobody else has ended."""
    assert not is_consequence(f"step 7\n{line}\n")


def test_only_the_last_lines_count() -> None:
    """A connection that broke long ago and was taken up again has ended nothing."""
    assert not is_consequence("Connection reset by peer\n" + "step\n" * 60 + "ValueError\n")


def test_a_log_is_read_from_its_end(tmp_path: Path) -> None:
    """However long it is, and whatever bytes are in it; one that isn't there is empty."""
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    log = run.log(0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"Connection refused\n" + b"\xff" * 100_000 + b"\nAssertionError\n")
    assert run.tail(0).endswith("\nAssertionError\n")
    assert len(run.tail(0)) < 20_000
    assert run.tail(1) == ""

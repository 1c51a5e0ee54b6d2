"""Sessions where the far end is not what it should be, and the frames that go between the two sides."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.node_program.agents import node_bytecode
from trainctl.base.protocol.method import untyped_method
from trainctl.base.protocol.wire import FrameDecoder, encode_frame
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import CommandOutput, Node
from trainctl.remote import processes
from trainctl.remote.agent import NodeAgent
from trainctl_local import LocalTransport

heads = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name not in ("size", "call")), st.text(max_size=9)
)


@pytest.fixture
def transport() -> Iterator[LocalTransport]:
    transport = LocalTransport()
    yield transport
    transport.close()


def calling(transport: LocalTransport, place: Path, script: str) -> NodeAgent:
    """An agent of a node whose Python is this shell script."""
    python = place / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return NodeAgent(Node("lab", "gpu", "local", str(place), str(place), str(python)), transport)


@given(st.lists(st.tuples(st.integers(0), heads, st.binary(max_size=30))), st.integers(1, 40))
def test_frames_arrive_whole_whatever_the_pieces(
    messages: list[tuple[int, dict[str, str], bytes]], size: int
) -> None:
    stream = b"".join(encode_frame({**head, "call": call}, data) for call, head, data in messages)
    frames = FrameDecoder()
    numbers = [
        frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])
    ]

    assert [data for _, data in numbers] == [data for _, _, data in messages]
    assert [{**head, "size": 0} for head, _ in numbers] == [
        {**head, "call": call, "size": 0} for call, head, _ in messages
    ]


@pytest.mark.parametrize("text", ["Welcome!\n", "[]\n", "{}\n", '{"call": "1"}\n', "x" * 2**17])
def test_other_text_is_not_a_frame(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FrameDecoder().feed(text.encode())


def test_noise_in_place_of_frames_is_shown(transport: LocalTransport, tmp_path: Path) -> None:
    """Which node, and what it says, without what could drive a terminal."""
    agent = calling(transport, tmp_path, r"printf '\033[2JWelcome to gpu\n'; exec cat >/dev/null")

    with pytest.raises(NodeError, match="unexpected response from node lab/gpu") as raised:
        agent.call(untyped_method("facts"), {})

    assert raised.value.detail == r"\x1b[2JWelcome to gpu"


def test_a_session_that_does_not_start_is_a_program_that_crashed(
    transport: LocalTransport, tmp_path: Path
) -> None:
    """With its exit code and last words; and again with the next call."""
    agent = calling(transport, tmp_path, "echo no such luck >&2; exit 3")

    for _ in range(2):
        with pytest.raises(NodeError, match="exit code 3") as raised:
            agent.call(untyped_method("facts"), {})
        assert raised.value.detail == "no such luck"


def test_a_link_that_fails_at_once_is_told(tmp_path: Path) -> None:
    """The session may be over before it is asked: it is not started for ever."""

    class Broken(LocalTransport):
        begun = 0

        def run(self, *args: Any, **more: Any) -> CommandOutput:
            Broken.begun += 1
            raise NodeUnreachable("no route to gpu")

    node = Node("lab", "gpu", "local", str(tmp_path), str(tmp_path), sys.executable)

    with pytest.raises(NodeUnreachable, match="no route"):
        NodeAgent(node, Broken()).call(untyped_method("status"), {})

    assert Broken.begun == 1


def test_a_session_is_started_beforehand_and_found(
    transport: LocalTransport, tmp_path: Path
) -> None:
    """What is opened is what the first call is answered by; of a program that isn't installed nothing is made."""
    root = tmp_path / "root"
    node = Node("lab", "gpu", "local", str(root), str(root), sys.executable)
    visitor = NodeAgent(node, transport, ephemeral=True, bytecode=node_bytecode)
    visitor.open()

    assert visitor.call(untyped_method("status"), {"root": str(root), "keys": []}) == {"runs": {}}
    assert not root.exists()

    agent = NodeAgent(node, transport, bytecode=node_bytecode)
    agent.open()

    assert agent.call(untyped_method("status"), {"root": str(root), "keys": []}) == {"runs": {}}


def test_output_that_fills_its_pipe_is_read_in_larger_pieces(transport: LocalTransport) -> None:
    sizes: list[int] = []

    def take(data: bytes) -> None:
        sizes.append(len(data))
        time.sleep(0.05)

    program = "import os; os.write(1, bytes(2**21))"
    transport.run([sys.executable, "-c", program], on_stdout=take)
    assert (sum(sizes), max(sizes)) == (2**21, 2**18)


def test_input_that_a_program_no_longer_reads_is_closed() -> None:
    """By the write that fails, as a close gives up when a write takes long."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "wb")
    pipe = processes._InputPipe(stream)
    os.close(reader)

    with pytest.raises(BrokenPipeError):
        pipe.write(b"data")
    assert stream.closed
    with pytest.raises(BrokenPipeError):
        pipe.write(b"more")

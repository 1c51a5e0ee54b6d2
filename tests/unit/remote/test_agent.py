"""Calling the node program."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.agents import node_bytecode
from trainctl.base.checkpoints.stores import StoreUnavailable
from trainctl.base.protocol.host import READ_CODE, CodeRequest
from trainctl.base.protocol.method import untyped_method
from trainctl.base.protocol.wire import FrameDecoder, encode_frame, error_to_json
from trainctl.errors import NodeError, StorageError
from trainctl.plugin_api.provider import CommandOutput, Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import MISSING, node_archive
from trainctl.remote.responses import error_from
from trainctl.remote.session import METHOD
from trainctl_local import LocalTransport

Reply = Callable[[Sequence[str], bytes], CommandOutput]


class Scripted:
    """A transport whose far side is a function."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.calls: list[Sequence[str]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        """Answer, a session until it ends or a call says that the program is missing."""
        self.calls.append(argv)
        if argv[-1] != METHOD:
            return self._reply(argv, b"".join(stdin))
        assert on_stdout is not None
        frames = FrameDecoder()
        for data in stdin:
            for head, request in frames.feed(data):
                output = self._reply([*argv[:-1], head["method"]], request)
                if output.exit_code == MISSING:
                    return output
                for text in _answer(head["call"], output):
                    on_stdout(text)
        return CommandOutput(0, b"", b"")

    def expose(self, port: int) -> AbstractContextManager[int]:
        return nullcontext(port)

    def close(self) -> None:
        """Nothing is held."""


def _answer(call: int, output: CommandOutput) -> Iterator[bytes]:
    """What a session says of one call, cut into pieces of seven bytes in the frames and on the way."""
    pieces = [output.stdout[at : at + 7] for at in range(0, len(output.stdout), 7)]
    frames = [encode_frame({"call": call, "stream": 1}, piece) for piece in pieces]
    frames.append(encode_frame({"call": call, "stream": 2}, output.stderr))
    text = b"".join([*frames, encode_frame({"call": call, "exit": output.exit_code})])
    yield from (text[at : at + 7] for at in range(0, len(text), 7))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    root, data = str(tmp_path / "node"), str(tmp_path / "data")
    return Node("lab", "lab-0", "local", root, data, sys.executable)


@pytest.fixture
def agents(node: Node) -> Iterator[Callable[[], NodeAgent]]:
    """Makes agents over the local transport, each as in another command."""
    transport = LocalTransport()
    yield lambda: NodeAgent(node, transport, bytecode=node_bytecode)
    transport.close()


def _installed(node: Node) -> Path:
    return Path(node.root) / "agent" / f"{node_archive().sha256}.pyz"


def ask(agents: Callable[[], NodeAgent], node: Node) -> Any:
    return agents().call(untyped_method("addresses"), {"root": node.root})


def _bytecode(node: Node) -> Path:
    return _installed(node).with_name(
        f"{node_archive().sha256}-{sys.implementation.cache_tag}.code"
    )


def test_the_archive_is_the_same_in_every_process() -> None:
    """Its digest depends on the source alone, not on when and where it is packed."""
    program = "from trainctl.remote.archive import node_archive as a; print(a().sha256)"
    environment = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1"}

    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )

    assert other.stdout.strip() == node_archive().sha256
    assert hashlib.sha256(node_archive().data).hexdigest() == node_archive().sha256


def test_the_archive_has_the_node_program_and_imports_nothing_else() -> None:
    """But the standard library. An empty package is above it, so that names are the same in the archive and here."""
    with zipfile.ZipFile(io.BytesIO(node_archive().data)) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    packages = ("base", "node", "store", "model", "plugin_api", "sources")
    roots = ("__main__.py", "trainctl/__init__.py", "trainctl/errors.py", "trainctl/program.py")
    below = tuple(f"trainctl/{package}/" for package in packages)
    assert texts["trainctl/__init__.py"] == ""
    assert [name for name in texts if name not in roots and not name.startswith(below)] == []
    ours = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in texts}
    for name, text in texts.items():
        for module in re.findall(r"^ *from ([\w.]+) import", text, re.MULTILINE):
            assert module in ours or module.partition(".")[0] in sys.stdlib_module_names, name


def test_a_missing_program_is_installed(agents: Callable[[], NodeAgent], node: Node) -> None:
    """Under its digest, readable by its owner only, with its bytecode. Valid bytecode alone is enough."""
    ask(agents, node)

    program = _installed(node)
    assert hashlib.sha256(program.read_bytes()).hexdigest() == node_archive().sha256
    assert program.stat().st_mode & 0o777 == 0o600
    assert {*program.parent.iterdir()} == {program, _bytecode(node)}

    program.unlink()
    ask(agents, node)
    assert not program.exists()


def test_a_changed_program_is_never_run(agents: Callable[[], NodeAgent], node: Node) -> None:
    """Changed bytecode is not used, and a changed program is installed again."""
    ask(agents, node)
    body = _bytecode(node).read_bytes()
    _bytecode(node).write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert ask(agents, node)["addresses"]

    _bytecode(node).unlink()
    _installed(node).write_bytes(node_archive().data + b"\n")
    ask(agents, node)
    assert _installed(node).read_bytes() == node_archive().data


def test_a_one_time_payload_arrives_whole_on_a_new_node(
    agents: Callable[[], NodeAgent], node: Node
) -> None:
    """Installing the program does not use the payload up."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    data, agent = stream.getvalue(), agents()
    payload = (data[at : at + 100] for at in range(0, len(data), 100))
    request = {"root": node.root, "digest": "sha256:x"}

    agent.call(untyped_method("upload_code"), request, payload=payload)

    stored = bytearray()
    agent.read(READ_CODE, CodeRequest(root=node.root, digest="sha256:x"), stored.extend)
    assert stored == data
    with pytest.raises(NodeError, match="sha256:none"):
        agent.read(READ_CODE, CodeRequest(root=node.root, digest="sha256:none"), stored.extend)
    assert stored == data


def test_an_error_of_a_node_keeps_its_class_and_code() -> None:
    """One of a newer program is a NodeError."""
    sent = error_to_json(StoreUnavailable("no response"))
    error = error_from("lab/lab-0", sent)
    assert (type(error), error.code) == (StorageError, "checkpoint-store")
    assert type(error_from("lab/lab-0", {**sent, "kind": "Newer"})) is NodeError


def respond(node: Node, code: int, stdout: bytes = b"", stderr: bytes = b"") -> NodeAgent:
    """An agent whose calls all have this response."""
    return NodeAgent(node, Scripted(lambda argv, stdin: CommandOutput(code, stdout, stderr)))


def test_events_come_before_the_result_whatever_the_pieces(node: Node) -> None:
    lines = b'{"event": {"done": 1}}\n{"event": {"done": 2}}\n{"result": {"tree": "\xc3\xa4"}}\n'
    events: list[object] = []

    agent = respond(node, 0, lines)
    result = agent.call(untyped_method("deliver"), {}, on_event=events.append)

    assert (events, result) == ([{"done": 1}, {"done": 2}], {"tree": "ä"})


def test_a_crash_shows_its_last_lines_escaped(node: Node) -> None:
    """Standard error of a program that died is the detail, without what could drive a terminal."""
    noise = "größe\n".encode() * 100 + b"\x1b[31mValueError: \xe2\x80\xae bad\x07\n"

    with pytest.raises(NodeError) as raised:
        respond(node, 1, stderr=noise).call(untyped_method("facts"), {})

    assert raised.value.detail.splitlines()[-1] == r"\x1b[31mValueError: \u202e bad\x07"
    assert raised.value.detail.splitlines()[:-1] == ["größe"] * 11


@pytest.mark.parametrize("answer", [b"", b"Welcome to gpu-01!\n", b'{"event": {}}\n'])
def test_no_result_is_an_error(node: Node, answer: bytes) -> None:
    with pytest.raises(NodeError):
        respond(node, 0, answer).call(untyped_method("facts"), {})


def test_a_program_that_never_gets_right_is_given_up(node: Node) -> None:
    """One installation and one more attempt, then an error that names the file."""
    transport = Scripted(
        lambda argv, stdin: CommandOutput(97 if argv[-1] == "facts" else 0, b"", b"")
    )

    with pytest.raises(NodeError, match="node program") as raised:
        NodeAgent(node, transport).call(untyped_method("facts"), {})

    assert len(transport.calls) == 3
    assert node.root in raised.value.detail


@pytest.mark.parametrize(
    ("code", "stderr", "detail"),
    [(-9, b"", "signal 9"), (1, b"", "exit code 1"), (1, b"Disk full: /x", "Disk full: /x")],
)
def test_an_installation_that_fails_says_why(
    node: Node, code: int, stderr: bytes, detail: str
) -> None:
    transport = Scripted(
        lambda argv, _: CommandOutput(97 if argv[-1] == "facts" else code, b"", stderr)
    )

    with pytest.raises(StorageError, match="cannot install the node program on") as raised:
        NodeAgent(node, transport).call(untyped_method("facts"), {})

    assert detail in raised.value.detail


def test_a_secret_is_in_no_argument(node: Node) -> None:
    seen: list[bytes] = []

    def reply(argv: Sequence[str], stdin: bytes) -> CommandOutput:
        seen.append(stdin)
        return CommandOutput(0, b'{"result": {}}\n', b"")

    transport = Scripted(reply)
    NodeAgent(node, transport).call(untyped_method("start"), {"secrets": {"a": "s3cr3t-value"}})

    assert b"s3cr3t-value" in seen[0]
    assert all("s3cr3t-value" not in word for call in transport.calls for word in call)

"""The node program's bytecode on the operator's side: made once, and never trusted unseen."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness, project
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.system.bytecode import is_valid_bytecode
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import ProgramArchive, load_bytecode, node_archive
from trainctl_local import LocalTransport


def test_it_is_made_once(tmp_path: Path) -> None:
    """The second time it is read, and nothing is written."""
    first = load_bytecode(node_archive(), tmp_path)
    (kept,) = tmp_path.iterdir()
    before = kept.stat()

    assert load_bytecode(node_archive(), tmp_path) == first == kept.read_bytes()
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_wrong_bytecode_is_recognised_and_replaced(tmp_path: Path) -> None:
    """Cut, foreign, flipped or of another program."""
    right, digest = load_bytecode(node_archive(), tmp_path), node_archive().sha256
    (kept,) = tmp_path.iterdir()
    assert is_valid_bytecode(right, digest)
    assert not is_valid_bytecode(right, "0" * 64)
    for damaged in (b"", b"0" * 100, right[: len(right) // 2], right[:-1] + b"?"):
        assert not is_valid_bytecode(damaged, digest)
    kept.write_bytes(right[:-1] + b"?")

    assert load_bytecode(node_archive(), tmp_path) == right == kept.read_bytes()


def test_it_is_of_the_program_that_goes_along(tmp_path: Path) -> None:
    """What Python keeps of an installed module stands for that very source: of any other, it is compiled."""
    name = "trainctl/node/system/layout.py"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, "another = 'another source'\n")
    other = ProgramArchive(stream.getvalue(), hashlib.sha256(stream.getvalue()).hexdigest())

    assert b"another source" in load_bytecode(other, tmp_path)
    assert b"another source" not in load_bytecode(node_archive(), tmp_path)


def test_it_need_not_be_kept(tmp_path: Path) -> None:
    """Where the cache is no directory, or can't be written, it is made for this command alone."""
    (tmp_path / "cache").write_text("")

    assert is_valid_bytecode(
        load_bytecode(node_archive(), tmp_path / "cache"), node_archive().sha256
    )


def test_a_visit_and_an_installation_take_it_as_it_is(tmp_path: Path) -> None:
    """A node that is given bytecode compiles nothing: what it keeps is byte for byte what it was given."""
    data = load_bytecode(node_archive(), tmp_path / "cache")
    node = Node("lab", "lab-0", "local", str(tmp_path / "node"), "", sys.executable)
    transport = LocalTransport()

    visitor = NodeAgent(node, transport, ephemeral=True, bytecode=lambda: data)
    assert visitor.call(STATUS, StatusRequest(root=node.root, keys=[])) == {"runs": {}}
    assert not Path(node.root).exists()

    NodeAgent(node, transport, bytecode=lambda: data).call(
        STATUS, StatusRequest(root=node.root, keys=[])
    )
    transport.close()

    name = f"{node_archive().sha256}-{sys.implementation.cache_tag}.pyz"
    assert (tmp_path / "node" / "agent" / name).read_bytes() == data


@pytest.mark.parametrize("same", [True, False])
def test_a_remote_node_takes_it_if_its_python_is_the_same(tmp_path: Path, *, same: bool) -> None:
    """A visit and an installation send it with the program; a node with another Python does without it."""
    data = load_bytecode(node_archive(), tmp_path / "cache")
    sent = data if same else b"0" * 64 + data[64:]
    node = Node("lab", "lab-0", "local", str(tmp_path / "node"), "", sys.executable)
    transport = LocalTransport()
    request = StatusRequest(root=node.root, keys=[])

    for ephemeral in (True, False):
        agent = NodeAgent(node, transport, ephemeral=ephemeral, bytecode=lambda: sent, remote=True)
        assert agent.call(STATUS, request) == {"runs": {}}
        assert Path(node.root).exists() is not ephemeral
    transport.close()

    name = f"{node_archive().sha256}-{sys.implementation.cache_tag}.pyz"
    installed = (tmp_path / "node" / "agent" / name).read_bytes()
    assert is_valid_bytecode(installed, node_archive().sha256)
    assert (installed == data) is same


def test_bytecode_of_another_program_is_compiled_over(tmp_path: Path) -> None:
    """What an installation is handed counts only if it is sealed for this program and this Python."""
    node = Node("lab", "lab-0", "local", str(tmp_path / "node"), "", sys.executable)
    transport = LocalTransport()

    agent = NodeAgent(node, transport, bytecode=lambda: b"0" * 1000)
    agent.call(STATUS, StatusRequest(root=node.root, keys=[]))
    transport.close()

    name = f"{node_archive().sha256}-{sys.implementation.cache_tag}.pyz"
    installed = (tmp_path / "node" / "agent" / name).read_bytes()
    assert is_valid_bytecode(installed, node_archive().sha256)


@pytest.mark.integration
def test_a_local_node_is_given_it(tmp_path: Path) -> None:
    """The first plan keeps it in the user's cache."""
    with project(tmp_path) as made:
        _one_job(made)
        kept = tmp_path / "cache" / "trainctl" / "bytecode"
        kept.unlink()

        made.run("plan")

        (found,) = kept.iterdir()
        assert is_valid_bytecode(found.read_bytes(), node_archive().sha256)


def _one_job(made: ProjectHarness) -> None:
    made.write(
        {
            "trainctl.yaml": "project: {name: p}\njobs:\n  a:\n    code: ./src\n    runtime: {start_commands: ['true']}\n",
            "src/a": "",
        }
    )

"""Bytecode of the node program: compiled once by the client, and verified before it is used."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

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


def test_the_digest_is_kept_until_a_module_changes(tmp_path: Path) -> None:
    """Also of the same length, and without another time of writing."""
    module, cache = tmp_path / "module.py", tmp_path / "cache"
    module.write_text("a = 1")

    def digest() -> str:
        archive = ProgramArchive({"module.py": module}, cache)
        assert ProgramArchive({"module.py": module}).sha256 == archive.sha256
        return archive.sha256

    first = digest()
    (kept,) = cache.iterdir()
    assert kept.read_text() == first == digest()
    before = module.stat()
    module.write_text("a = 2")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest() != first
    assert len(list(cache.iterdir())) == 1


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
    other = ProgramArchive({"trainctl/node/system/layout.py": "another = 'another source'\n"})

    assert b"another source" in load_bytecode(other, tmp_path)
    assert b"another source" not in load_bytecode(node_archive(), tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node("lab", "lab-0", "local", str(tmp_path / "node"), "", sys.executable)


def installed(node: Node) -> bytes:
    name = f"{node_archive().sha256}-{sys.implementation.cache_tag}.code"
    return (Path(node.root) / "agent" / name).read_bytes()


@pytest.mark.parametrize(
    ("remote", "valid", "visits"),
    [(False, True, True), (True, True, True), (True, False, True), (False, False, False)],
)
def test_a_node_uses_bytecode_of_its_own_python_only(
    node: Node, tmp_path: Path, remote: bool, valid: bool, visits: bool
) -> None:
    """A visit and an installation get it with the program; other bytecode is compiled again."""
    data = load_bytecode(node_archive(), tmp_path / "cache")
    given = data if valid else b"0" * 64 + data[64:]

    for ephemeral in (True, False) if visits else (False,):
        with closing(LocalTransport()) as transport:
            agent = NodeAgent(
                node, transport, ephemeral=ephemeral, bytecode=lambda: given, remote=remote
            )
            assert agent.call(STATUS, StatusRequest(root=node.root, keys=[])) == {"runs": {}}
        assert Path(node.root).exists() is not ephemeral

    assert is_valid_bytecode(installed(node), node_archive().sha256)
    assert (installed(node) == data) is valid

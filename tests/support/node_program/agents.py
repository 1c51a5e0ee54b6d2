"""Nodes of this machine on which the node program is installed already, once for all tests of a process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.cleanup import AT_END
from tests.support.node_program.node_forks import ForkingPopen, installed_program, server
from tests.support.node_program.nodes import python38
from trainctl.plugin_api.provider import Node
from trainctl.remote import processes
from trainctl.remote.archive import load_bytecode, node_archive


@functools.cache
def bytecode_cache() -> Path:
    """Where agents of this process keep the compiled node program."""
    place = Path(tempfile.mkdtemp(prefix="trainctl-test-bytecode-"))
    AT_END.callback(shutil.rmtree, place, ignore_errors=True)
    return place


def node_bytecode() -> bytes:
    """The node program compiled for this Python."""
    return load_bytecode(node_archive(), bytecode_cache())


def fork_local_nodes(patch: pytest.MonkeyPatch) -> None:
    """Have calls of the node program on this machine be forks of a process that has loaded it."""
    replaced = ModuleType("subprocess")
    vars(replaced).update(vars(subprocess), Popen=ForkingPopen)
    address = server((sys.executable,), installed_program(sys.executable))
    patch.setattr(ForkingPopen, "address", address)
    patch.setattr(processes, "subprocess", replaced)


def node_at(base: Path, python: str | None = None) -> Node:
    """A node below a directory, by default with the oldest Python that hosts may have."""
    python = python or python38() or sys.executable
    node = Node("lab", "gpu-0", "local", str(base / "node"), str(base / "data"), python, key="k")
    program = installed_program(python)
    folder = Path(node.root) / "agent"
    folder.mkdir(parents=True)
    for path in program.parent.iterdir():
        os.link(path, folder / path.name.replace(program.stem, node_archive().sha256))
    return node

"""Nodes of this machine on which the node program is installed already, once for all tests of a process."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path

from tests.support.node_forks import installed_program
from tests.support.nodes import python38
from trainctl.remote.archive import compiled, node_archive
from trainctl.spi.provider import Node


@functools.cache
def node_bytecode() -> bytes:
    """The node program compiled for this Python."""
    with tempfile.TemporaryDirectory() as cache:
        return compiled(node_archive(), Path(cache))


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

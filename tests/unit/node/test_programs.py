"""Programs of other versions on a node: kept for a day after their last call, removed when a new one is installed."""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from tests.support.node_program.node_forks import installed_program
from tests.support.node_program.nodes import NodeHarness
from trainctl.remote.archive import INSTALL, RUN, ProgramArchive, node_archive, program_archive

OTHER, ANOTHER = "a" * 64, "b" * 64


def age(*paths: Path) -> None:
    """As if nobody had touched them for two days."""
    for path in paths:
        os.utime(path, (time.time() - 2 * 86_400,) * 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where programs are kept, with two that were not called for two days, one of them half installed, and a file of somebody else's."""
    folder = tmp_path / "agent"
    folder.mkdir()
    for name in (
        f"{OTHER}.pyz",
        f"{OTHER}-cpython-38.pyz",
        f"{ANOTHER}.pyz.12.abcdef",
        "notes.txt",
    ):
        (folder / name).write_bytes(b"old")
        age(folder / name)
    return folder


def _newer() -> ProgramArchive:
    return program_archive("trainctl.node.__main__", ("trainctl:errors", "trainctl.base"))


def install(node: NodeHarness, folder: Path, archive: ProgramArchive) -> set[str]:
    """Install a program; what is there then, but for what is its own."""
    words = [str(folder / f"{archive.sha256}.pyz"), archive.sha256, str(len(archive.data))]
    argv = [node.python, "-I", "-S", "-c", INSTALL, *words]
    compiled = b""  # the node program was compiled for other tests
    if archive == node_archive():
        (path,) = installed_program(node.python).parent.glob("program-*.pyz")
        compiled = path.read_bytes()
    subprocess.run(argv, input=zlib.compress(archive.data + compiled, 0), check=True)
    return {path.name for path in folder.iterdir() if not path.name.startswith(archive.sha256)}


def test_what_nobody_uses_goes_with_its_bytecode(node: NodeHarness, folder: Path) -> None:
    """And what a killed installation left; other files stay."""
    assert install(node, folder, node_archive()) == {"notes.txt"}


@pytest.mark.parametrize("called", [True, False])
def test_what_was_called_within_a_day_stays(
    node: NodeHarness, folder: Path, *, called: bool
) -> None:
    """Every call touches its program, whatever comes of it; one that is not called goes."""
    archive = node_archive()
    mine = archive.sha256
    program = folder / f"{mine}.pyz"
    install(node, folder, archive)
    age(*folder.iterdir())
    if called:
        argv = [node.python, "-I", "-S", "-c", RUN, str(program), mine, "no such verb"]
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)

    left = install(node, folder, _newer())

    assert (
        {name for name in left if name.startswith(mine)} != set()
        if called
        else left == {"notes.txt"}
    )

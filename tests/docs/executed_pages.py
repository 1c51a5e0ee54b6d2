"""Running the commands of a page and comparing what they print with what it shows.

``TRAINCTL_DOCS_WRITE=1`` writes the real output into the pages where it differs.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.docs.page_run import PageRun
from tests.docs.pages import README, Page
from tests.docs.services import World, services
from tests.docs.shell import bash
from tests.support.projects.command_forks import write_command
from tests.support.projects.program import ROOT
from tests.support.projects.project import end_processes, shared_bytecode

_SHOWN_HOME = "/home/alice"
_SHOWN_USER = "alice@laptop"


def executed_pages(paths: Iterable[Path]) -> list[Page]:
    """The pages that have commands to run."""
    return [
        page
        for page in map(Page, paths)
        if any(block.is_run and block.language == "console" for block in page.blocks())
    ]


def check_page(page: Page, top: Path) -> None:
    """Write the files and run the commands in order, in one fresh directory with a fresh home; fail if output differs."""
    world = _world(top)
    directory, scratch = world.home / "project", top / "scratch"
    for folder in (directory, scratch):
        folder.mkdir()
    if page.path == README:
        (directory / "examples").symlink_to(ROOT / "examples")
    try:
        with (
            services(page.fixtures, world, top),
            bash(directory, world.variables, scratch) as shell,
        ):
            run = PageRun(page, directory, shell, world)
            run.follow()
    finally:
        end_processes(str(top))
    if run.problems:
        if os.environ.get("TRAINCTL_DOCS_WRITE"):
            run.write_output()
        pytest.fail("\n\n".join(run.problems), pytrace=False)


def _world(top: Path) -> World:
    home = top / "home"
    bytecode = home / ".cache" / "trainctl" / "bytecode"
    bytecode.parent.mkdir(parents=True)
    bytecode.symlink_to(shared_bytecode())
    programs = top / "programs"
    programs.mkdir()
    write_command(programs / "trainctl")
    variables = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "GIT_AUTHOR_NAME": "Alice",
        "GIT_AUTHOR_EMAIL": "alice@example.com",
        "GIT_COMMITTER_NAME": "Alice",
        "GIT_COMMITTER_EMAIL": "alice@example.com",
    }
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    return World(home, variables, {str(home): _SHOWN_HOME, user: _SHOWN_USER})

"""The author of entries: of a pipeline, or of the machine."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainctl.ledger import provenance
from trainctl.ledger.provenance import EntryAuthor, entry_author

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_ACTOR": "ann",
    "GITHUB_TRIGGERING_ACTOR": "bob",
    "GITHUB_SHA": "0" * 40,
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "o/r",
    "GITHUB_RUN_ID": "7",
}
GITLAB = {
    "GITLAB_CI": "true",
    "GITLAB_USER_LOGIN": "ann",
    "CI_SERVER_URL": "https://git.example.com:8443",
    "CI_COMMIT_SHA": "1" * 40,
    "CI_JOB_URL": "https://git.example.com:8443/o/r/-/jobs/3",
}
HERE = f"{getpass.getuser()}@{os.uname().nodename}"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, outside of any work tree."""
    monkeypatch.chdir(tmp_path)
    provenance._head_commit.cache_clear()
    yield tmp_path
    provenance._head_commit.cache_clear()


@pytest.mark.parametrize(
    ("environ", "author"),
    [
        ({}, EntryAuthor(HERE)),
        ({"GITHUB_ACTOR": "ann", "CI_COMMIT_SHA": "1" * 40}, EntryAuthor(HERE)),
        (
            GITHUB,
            EntryAuthor("bob@github.com", "0" * 40, "https://github.com/o/r/actions/runs/7"),
        ),
        (GITLAB, EntryAuthor("ann@git.example.com", "1" * 40, GITLAB["CI_JOB_URL"])),
        ({"GITHUB_ACTIONS": "true"}, EntryAuthor(HERE)),
    ],
)
def test_who_acts(environ: dict[str, str], author: EntryAuthor) -> None:
    """The user that started the pipeline, with commit and run; elsewhere the user of this machine."""
    assert entry_author(environ) == author


@pytest.mark.parametrize("junk", ["a\x1b[31mb", "a\nb", "a" * 257, "\u202e"])
def test_only_short_printable_values_are_taken(junk: str) -> None:
    """Whatever the environment holds, an entry stays small and can be printed."""
    for given in (GITHUB, GITLAB):
        spoiled = {
            name: junk if name not in ("GITHUB_ACTIONS", "GITLAB_CI") else "1" for name in given
        }
        assert entry_author(spoiled) == EntryAuthor(HERE)
    assert entry_author({**GITLAB, "CI_JOB_URL": "javascript:alert(1)"}).pipeline is None
    assert entry_author({**GITHUB, "GITHUB_SHA": "main; rm"}).commit is None


def test_outside_of_ci_the_commit_is_that_of_the_work_tree(directory: Path) -> None:
    """None before there is one; a pipeline's own commit stands before it."""

    def git(*arguments: str) -> str:
        provenance._head_commit.cache_clear()
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.check_output(command, text=True).strip()

    git("init", "-q")
    assert entry_author({}).commit is None
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD")
    (directory / "jobs").mkdir()
    os.chdir(directory / "jobs")
    assert entry_author({}).commit == head
    assert entry_author(GITHUB).commit == "0" * 40
    git("pack-refs", "--all")
    assert entry_author({}).commit == head
    git("worktree", "add", "-q", "other")
    os.chdir("other")
    assert entry_author({}).commit == head
    git("checkout", "-q", "--detach")
    assert entry_author({}).commit == head

"""How the code of a run differs from the commit of the run before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.recipes import git
from trainctl.inputs.code import scan
from trainctl.model.address import Address
from trainctl.model.contents import ContentDiff
from trainctl.operations.survey.contents import compare_code


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Code in a folder of a repository, committed, with a file that is never code."""
    code = tmp_path / "src"
    code.mkdir()
    texts = {"kept": "a\n", "train.py": "a\nb\n", "old.py": "x\n", "secret\t": "s\n", "b.bin": "\0"}
    for name, text in texts.items():
        (code / name).write_text(text)
    (code / ".trainctlignore").write_text("secret*\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return code


def compare(code: Path, before: str) -> tuple[dict[str, tuple[object, object]], tuple[str, ...]]:
    """Compare the code with the only commit, which a run with code of this digest names."""
    now = scan(code, ".")
    diff = ContentDiff(Address.parse("job.a"), "code", before, now.tree.digest)
    diff = compare_code(diff, code, git(code, "rev-parse", "HEAD"), now.blobs)
    (group,) = diff.groups
    return {row.name: (row.before, row.after) for row in group.changes}, diff.notes


def test_lines_of_each_file(code: Path) -> None:
    before = scan(code, ".").tree.digest
    (code / "train.py").write_text("a\nc\nd\n")
    (code / "old.py").unlink()
    (code / "new é.py").write_text("1\n2\n")
    (code / "b.bin").write_bytes(b"\0\1")
    (code / "kept").chmod(0o755)
    (code / "secret\t").write_text("t\n")
    assert compare(code, before) == (
        {
            "train.py": (1, 2),
            "old.py": (1, None),
            "new é.py": (None, 2),
            "b.bin": (0, 0),
            "kept": (0, 0),
        },
        (),
    )

"""Finding and merging the files of a manifest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.machines.permissions import unreadable
from trainctl.errors import ManifestError
from trainctl.manifest.files import MAX_FILE_BYTES
from trainctl.manifest.read import read
from trainctl.manifest.tree import to_plain
from trainctl.model.diagnostics import Diagnostic


def refusals(directory: Path) -> list[Diagnostic]:
    with pytest.raises(ManifestError) as failure:
        read(directory)
    return [problem for problem in failure.value.diagnostics if isinstance(problem, Diagnostic)]


def test_all_files_are_one_manifest(tmp_path: Path) -> None:
    """YAML and TOML, by either naming; other files are not read."""
    (tmp_path / "trainctl.yaml").write_text("version: 1\njobs: {a: {}}\n")
    (tmp_path / "more.trainctl.toml").write_text("version = 1\n[jobs.b]\n")
    (tmp_path / "vars.trainctl.yml").write_text("vars: {x: 1}\n")
    (tmp_path / "other.yaml").write_text("jobs: {c: {}}\n")
    (tmp_path / "nottrainctl.yaml").write_text("jobs: {d: {}}\n")
    (tmp_path / "x.trainctl.yaml").mkdir()
    documents = read(tmp_path)
    assert documents.files == ("more.trainctl.toml", "trainctl.yaml", "vars.trainctl.yml")
    assert to_plain(documents.root) == {"version": 1, "jobs": {"a": {}, "b": {}}, "vars": {"x": 1}}
    assert documents.problems == ()


def test_a_name_in_two_files_names_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.trainctl.yaml").write_text("jobs:\n  sft: {}\nmirror: {url: x}\n")
    (tmp_path / "b.trainctl.toml").write_text("mirror = {url = 'y'}\n[jobs.sft]\n")
    details = {str(problem.where): problem.detail for problem in read(tmp_path).problems}
    assert "a.trainctl.yaml:2:3" in details["b.trainctl.toml: jobs.sft"]
    assert "a.trainctl.yaml:3:1" in details["b.trainctl.toml: mirror"]


def test_a_directory_without_a_manifest_is_a_problem(tmp_path: Path) -> None:
    (problem,) = refusals(tmp_path)
    assert problem.summary == "no manifest found"
    assert "trainctl.yaml" in problem.detail
    assert str(tmp_path) in problem.detail


@pytest.mark.parametrize(
    ("data", "summary", "place"),
    [
        (b"", "the file is empty", "1:1"),
        (b"# only a comment\n", "the file is empty", "1:1"),
        (b"- a\n", "expected a mapping at the top level", "1:1"),
        (b"hello\n", "expected a mapping at the top level", "1:1"),
        ("a: 1\nb: ä".encode() + b"\xff\n", "not UTF-8 text", "2:5"),
        (b"a: " + b"x" * MAX_FILE_BYTES, "the file is larger than 1 MiB", ""),
    ],
)
def test_a_file_without_a_mapping_is_refused(
    tmp_path: Path, data: bytes, summary: str, place: str
) -> None:
    (tmp_path / "trainctl.yaml").write_bytes(data)
    (problem,) = refusals(tmp_path)
    assert problem.summary == summary
    assert str(problem.where) == ("trainctl.yaml" + (f":{place}" if place else ""))


def test_all_unreadable_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.trainctl.yaml").write_text("a: [")
    (tmp_path / "b.trainctl.toml").write_text("a = [")
    files = [problem.where.file for problem in refusals(tmp_path) if problem.where]
    assert sorted(files) == ["a.trainctl.yaml", "b.trainctl.toml"]


def test_a_file_without_permission_is_a_problem() -> None:
    """If it was skipped, the resources that it declares would be destroyed."""
    with tempfile.TemporaryDirectory() as top:
        place = Path(top)
        place.chmod(0o755)
        (place / "trainctl.yaml").write_text("a: 1")
        with unreadable(place / "trainctl.yaml", place):
            (problem,) = refusals(place)
    assert problem.summary == "cannot read the file: Permission denied"

"""Files of new projects: what ``trainctl init`` finds, writes and keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.operations.manifests.init import EXAMPLES, write_example, write_minimal


def manifest(directory: Path, *config: str) -> str:
    path = directory.parent / "config"
    if config:
        path.write_text(config[0])
    write_minimal(directory, path)
    return (directory / "trainctl.yaml").read_text()


def test_files_that_exist_are_kept(tmp_path: Path) -> None:
    (tmp_path / "trainctl.yaml").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "fit.py").write_text("mine")
    first = write_example("sweep", tmp_path)
    assert first.existing == ["src/fit.py", "trainctl.yaml"]
    assert first.written == ["src/bigram.py", "src/data.py", "src/evaluate.py"]
    assert (tmp_path / "src" / "fit.py").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    assert write_example("sweep", tmp_path).written == []


def test_no_second_manifest_is_written(tmp_path: Path) -> None:
    """All manifest files of a directory count, also those with other names."""
    (tmp_path / "a.trainctl.toml").write_text("")
    assert write_minimal(tmp_path, tmp_path / "none") == ([], ["a.trainctl.toml"])
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_written_over_a_file_or_without_need(tmp_path: Path) -> None:
    (tmp_path / "src").write_text("")
    with pytest.raises(OSError, match="src"):
        write_example("sweep", tmp_path)
    assert not (tmp_path / "trainctl.yaml").exists()
    write_example("quickstart", tmp_path / "new")
    assert not (tmp_path / "new" / "run").exists()  # it is for checkouts
    assert len(EXAMPLES) == 7

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cases import cases
from trainctl.errors import StorageError, TrainctlError
from trainctl.weights.lock import LockEntry, LockFile

ROOT = Path(__file__).resolve().parents[3]
ENTRY = LockEntry("hf://a/b", ("*.json",), None, "c" * 40, "sha256:1", 3, 100)
OTHER = LockEntry("file:./x", None, None, "sha256:2", "sha256:2", 1, 5)


def test_entries_are_read_as_they_were_put(tmp_path: Path) -> None:
    lock = LockFile(tmp_path)
    assert lock.entries() == {}
    lock.put([ENTRY, OTHER])
    assert lock.entries() == {ENTRY.key: ENTRY, OTHER.key: OTHER}
    assert [path.name for path in tmp_path.iterdir()] == ["trainctl.lock"]


def test_an_entry_is_replaced_only_on_request(tmp_path: Path) -> None:
    """The same source with other patterns is another entry."""
    lock = LockFile(tmp_path)
    lock.put([ENTRY])
    newer = replace(ENTRY, revision="d" * 40)
    lock.put([newer])
    assert lock.entries()[ENTRY.key] == ENTRY
    lock.put([newer], replace=True)
    assert lock.entries()[ENTRY.key] == newer
    lock.put([replace(ENTRY, allow_patterns=None)])
    assert len(lock.entries()) == 2


def test_the_text_is_stable(tmp_path: Path) -> None:
    """The order of writing doesn't show, and an unchanged file is not written again."""
    lock = LockFile(tmp_path)
    lock.put([ENTRY, OTHER])
    text, before = lock.path.read_text(), lock.path.stat()
    lock.put([ENTRY], replace=True)
    assert lock.path.stat().st_ino == before.st_ino
    lock.path.unlink()
    lock.put([OTHER])
    lock.put([ENTRY])
    assert lock.path.read_text() == text


def test_unknown_members_are_kept(tmp_path: Path) -> None:
    lock = LockFile(tmp_path)
    lock.put([ENTRY])
    document = json.loads(lock.path.read_text())
    document["future"] = {"x": 1}
    document["sources"][0]["license"] = "mit"
    lock.path.write_text(json.dumps(document))
    lock.put([OTHER, replace(ENTRY, bytes=7)], replace=True)
    document = json.loads(lock.path.read_text())
    assert document["future"] == {"x": 1}
    assert [row.get("license") for row in document["sources"]] == [None, "mit"]


DEEP = {"text": "[" * 100_000, "error": "nesting is too deep"}
LONG = {"text": "1" * 10_000, "error": "numbers are too long"}


@pytest.mark.parametrize("case", [*cases("sources/invalid_locks"), DEEP, LONG])
def test_an_invalid_file_is_an_error_with_its_line(tmp_path: Path, case: dict[str, str]) -> None:
    """It is never read as empty, and never overwritten."""
    lock = LockFile(tmp_path)
    lock.path.write_text(case["text"])
    for act in (lock.entries, lambda: lock.put([ENTRY])):
        with pytest.raises(TrainctlError, match=r"trainctl\.lock") as caught:
            act()
        assert case["error"] in str(caught.value)
    assert lock.path.read_text() == case["text"]


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from trainctl.weights.lock import LockEntry, LockFile
for number in range(10):
    entry = LockEntry(f"hf://a/b{sys.argv[2]}-{number}", None, None, "r", "p", 1, 1)
    LockFile(Path(sys.argv[1])).put([entry])
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(number)], cwd=ROOT)
        for number in range(3)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 3
    assert len(LockFile(tmp_path).entries()) == 30


def test_entries_outside_the_manifest_are_removed(tmp_path: Path) -> None:
    lock = LockFile(tmp_path)
    bare = LockEntry("s3://models/llm", None, None, "1", "sha256:1", 1, 5)
    there = replace(bare, endpoint_url="https://there.example")
    lock.put([ENTRY, OTHER, bare, there])
    lock.put([], manifest_keys={OTHER.key, there.key})
    assert lock.entries().keys() == {OTHER.key, there.key}
    lock.put([ENTRY], manifest_keys={there.key})
    assert lock.entries().keys() == {ENTRY.key, there.key}
    lock.put([], manifest_keys=set())
    assert lock.entries() == {}


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="--lockfile=readonly"):
        LockFile(tmp_path / "none").put([ENTRY])

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.permissions import unreadable
from tests.support.storage.mirrors import ingest, mirror_at, stored
from tests.support.storage.weights_data import LFS_POINTER
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, SourceNotFound
from trainctl.model.specs.resource import WeightsSpec
from trainctl.sources.file import FileSource
from trainctl.weights.resolution import Resolution, SourceRequest, resolve


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "w.bin").write_bytes(b"0123456789")
    (root / "sub" / "c.json").write_bytes(b"{}")
    return root


@pytest.fixture
def reachable(place: Path) -> Iterator[Path]:
    """The same where other users get to."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield Path(shutil.copytree(place, f"{top}/model"))


def wanted(root: Path, **patterns: tuple[str, ...]) -> Resolution:
    named = {f"{name}_patterns": texts for name, texts in patterns.items()}
    return resolve(SourceRequest(WeightsSpec("file:.", **named), root))  # type: ignore[arg-type]


def listed(root: Path) -> ResolvedSource:
    return FileSource().resolve(f"file://{root}", None, None)


def test_a_single_file_is_a_source_of_one(place: Path) -> None:
    resolved = resolve(SourceRequest(WeightsSpec("file:./w.bin"), place)).resolved
    assert [(file.path, file.size) for file in resolved.files] == [("w.bin", 10)]
    assert resolved.revision == resolved.files[0].validator
    assert resolved.source == f"file://{place}/w.bin"


def test_links_inside_are_content(place: Path) -> None:
    (place / "latest").symlink_to("w.bin")
    (place / "alias").symlink_to("sub")
    assert [file.path for file in listed(place).files] == [
        "alias/c.json",
        "latest",
        "sub/c.json",
        "w.bin",
    ]


def test_a_snapshot_of_the_hubs_cache_is_followed_in_its_repository(tmp_path: Path) -> None:
    tmp_path /= "snapshots"
    snapshot = tmp_path / "models--a--m" / "snapshots" / ("0" * 40)
    for directory in (
        snapshot,
        tmp_path / "models--a--m" / "blobs",
        tmp_path / "models--b" / "blobs",
    ):
        directory.mkdir(parents=True)
        (directory / "aaa").write_bytes(b"weights")
    (snapshot / "w.bin").symlink_to("../../blobs/aaa")
    assert [file.path for file in wanted(snapshot).resolved.files] == ["aaa", "w.bin"]
    (snapshot / "x.bin").symlink_to("../../../models--b/blobs/aaa")
    with pytest.raises(SourceError, match=r"x\.bin is a symlink that leaves the directory"):
        wanted(snapshot)


def test_a_pointer_of_git_lfs_is_not_the_file(place: Path) -> None:
    (place / "sub" / "w.safetensors").write_bytes(LFS_POINTER)
    with pytest.raises(SourceError, match=r"sub/w\.safetensors is a Git LFS pointer"):
        wanted(place)
    assert len(wanted(place, ignore=("*.safetensors",)).resolved.files) == 2


@pytest.mark.parametrize(
    ("target", "says"),
    [("/etc/passwd", "leaves the directory"), ("../../other", "leaves the directory"),
     ("nothing", "broken symlink"), (".", "parent directory")],
)  # fmt: skip
def test_other_links_are_errors_that_name_them(place: Path, target: str, says: str) -> None:
    (place.parent / "other").write_bytes(b"x")
    (place / "sub" / "bad").symlink_to(target)
    with pytest.raises(SourceError, match="sub/bad") as caught:
        wanted(place)
    assert says in str(caught.value)


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd", "nothing", ".", "bad"])
@pytest.mark.parametrize("ignore", ["sub/bad", "sub/", "*/bad"])
def test_patterns_can_ignore_invalid_links_and_pipes(place: Path, target: str, ignore: str) -> None:
    (place / "sub" / "bad").symlink_to(target)
    os.mkfifo(place / "pipe")
    result = wanted(place, ignore=(ignore, "pipe"))
    assert {file.path for file in result.resolved.files} - {"sub/c.json"} == {"w.bin"}
    assert not result.unmatched
    assert [file.path for file in wanted(place, allow=("w*",)).resolved.files] == ["w.bin"]


def test_a_pipe_is_refused(place: Path) -> None:
    os.mkfifo(place / "pipe")
    for source in ("file:.", "file:./pipe"):
        with pytest.raises(SourceError, match="pipe is neither a file nor a directory"):
            resolve(SourceRequest(WeightsSpec(source), place))


def test_what_is_missing_or_empty_is_gone(place: Path) -> None:
    with pytest.raises(SourceNotFound, match="not found"):
        listed(place / "none")
    (place / "empty").mkdir()
    with pytest.raises(SourceNotFound, match="contains no files"):
        resolve(SourceRequest(WeightsSpec("file:./empty"), place))
    with pytest.raises(SourceNotFound, match="matches the patterns"):
        resolve(
            SourceRequest(WeightsSpec("file:./model", allow_patterns=("*.gguf",)), place.parent)
        )


@pytest.mark.parametrize("name", ["sub", "sub/c.json"])
def test_an_unreadable_path_is_denied_unless_ignored(reachable: Path, name: str) -> None:
    with unreadable(reachable / name, reachable):
        with pytest.raises(SourceDenied, match=f": {name}/? is not readable"):
            wanted(reachable)
        with pytest.raises(SourceDenied, match=name):
            wanted(reachable, allow=("*.json", "w.bin"))
        result = [wanted(reachable, ignore=(text,)) for text in (f"{name}/", "sub/", "/sub/**")]
        result.append(wanted(reachable, allow=("w.*", "/suburb/*")))
    assert [file.path for item in result for file in item.resolved.files] == ["w.bin"] * 4


@pytest.mark.parametrize("change", ["content", "touch", "replace"])
def test_a_file_that_changed_since_is_refused(place: Path, tmp_path: Path, change: str) -> None:
    entries = listed(place)
    path = place / "w.bin"
    if change == "content":
        path.write_bytes(b"01234567890")
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    else:
        stamp = path.stat().st_mtime_ns
        (place / "new").write_bytes(b"9876543210")
        os.utime(place / "new", ns=(stamp, stamp))
        (place / "new").replace(path)
    with pytest.raises(SourceMismatch, match=r"w\.bin has changed"):
        ingest(mirror_at(tmp_path / "m"), entries, FileSource())
    assert set(stored(tmp_path / "m").values()) <= {len(b"{}")}
    assert not list((tmp_path / "m").glob("listings/*"))


def test_files_inside_the_directory_are_identified_by_content(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkout has the same pin; digests are cached until the time of a file changes."""
    cache = tmp_path / "digests"
    other = Path(shutil.copytree(place, tmp_path / "other"))
    monkeypatch.setattr("trainctl.sources.file._SETTLED_NS", -(10**12))
    first, second, again = (
        resolve(SourceRequest(WeightsSpec("file:."), root), memory=cache).resolved
        for root in (place, other, place)
    )
    assert first.pin == second.pin == again.pin
    assert first.files[1].sha256 == hashlib.sha256(b"0123456789").hexdigest()

    for record in cache.iterdir():
        record.write_text(re.sub(r" [0-9a-f]{64}", f" {'ab' * 32}", record.read_text()))
    cached = resolve(SourceRequest(WeightsSpec("file:."), place), memory=cache).resolved
    assert {file.sha256 for file in cached.files} == {"ab" * 32}
    (place / "w.bin").write_bytes(b"9876543210")
    changed = resolve(SourceRequest(WeightsSpec("file:."), place), memory=cache).resolved
    assert changed.files[1].sha256 == hashlib.sha256(b"9876543210").hexdigest()
    for record in cache.iterdir():
        record.write_bytes(b"not JSON")
    (place / "w.bin").write_bytes(b"0123456789")
    assert (
        resolve(SourceRequest(WeightsSpec("file:."), place), memory=cache).resolved.pin == first.pin
    )


def test_files_outside_the_directory_are_identified_by_time(place: Path, tmp_path: Path) -> None:
    """Also behind a link; such a plan is only for this machine."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(place)
    for source in (f"file://{place}", "file:./link"):
        resolved = resolve(SourceRequest(WeightsSpec(source), tmp_path / "here")).resolved
        assert all(file.is_local for file in resolved.files)

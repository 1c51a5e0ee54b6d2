from __future__ import annotations

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.servers.hub import serve
from tests.support.storage.mirrors import MemorySource, immediate_retry, ingest, mirror_at
from trainctl import errors
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, SourceNotFound, TrainctlError
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.store.store import MirrorStore
from trainctl.weights.resolution import Resolution, SourceRequest, resolve, resolve_from_lock

FILES = {"a.json": b"{}", "w.bin": b"0123"}


def test_a_locked_commit_is_resolved_until_an_upgrade(tmp_path: Path) -> None:
    with serve() as hub:
        first = hub.add("acme/model", FILES)
        request = SourceRequest(WeightsSpec("hf://acme/model@main"), tmp_path)
        options: Any = {"open_source": lambda scheme: HubSource(hub.url)}
        entry = resolve(request, **options).entry
        second = hub.add("acme/model", {**FILES, "a.json": b"[]"})
        locked = resolve(request, locked=entry, **options)
        moved = resolve(request, locked=entry, upgrade=True, **options)
    assert (entry.source, entry.revision, entry.files, entry.bytes) == (request.source, first, 2, 6)
    assert (locked.resolved.revision, locked.resolved.pin) == (first, entry.pin)
    assert (moved.resolved.revision, moved.warnings) == (second, ())
    assert (locked.locked, moved.locked, moved.entry.pin != entry.pin) == (True, False, True)
    (warning,) = locked.warnings
    assert warning.code == "upstream-changed"
    assert first in warning.detail
    assert second in warning.detail


def test_a_locked_commit_outlives_its_branch(tmp_path: Path) -> None:
    """A branch that is deleted upstream takes nothing from who has locked its commit."""
    with serve() as hub:
        commit = hub.add("acme/model", FILES, branch="next")
        wanted = SourceRequest(WeightsSpec("hf://acme/model@next"), tmp_path)
        entry = resolve(wanted, open_source=lambda scheme: HubSource(hub.url)).entry
        del hub.repos["models", "acme/model"].refs["next"]
        result = resolve(wanted, locked=entry, open_source=lambda scheme: HubSource(hub.url))
        with pytest.raises(SourceNotFound, match="revision not found"):
            resolve(wanted, open_source=lambda scheme: HubSource(hub.url))

    assert (result.resolved.revision, result.warnings) == (commit, ())


def test_other_files_at_a_locked_commit_are_refused(tmp_path: Path) -> None:
    """A commit that shows other files than were pinned is SourceMismatch that says how to accept it."""
    source = MemorySource(FILES)
    wanted = SourceRequest(WeightsSpec("hf://acme/model"), tmp_path)
    entry = resolve(wanted, open_source=lambda scheme: source).entry
    source.files = {**FILES, "w.bin": b"4567"}
    with pytest.raises(SourceMismatch, match=r"files at commit 1 differ .*\n.*--upgrade"):
        resolve(wanted, locked=entry, open_source=lambda scheme: source)
    assert not resolve(wanted, locked=entry, upgrade=True, open_source=lambda scheme: source).locked


def test_a_directory_that_changed_is_a_warning(tmp_path: Path) -> None:
    """Nothing identifies a path on other machines, so its lock binds nobody: other sizes than locked warn, other times do not."""
    (tmp_path / "w").write_bytes(b"1234")
    wanted = SourceRequest(WeightsSpec("file:."), tmp_path)
    result = resolve(wanted)
    assert result.entry.revision == result.resolved.files[0].validator
    touched = replace(result.entry, pin="sha256:of another machine")
    assert resolve(wanted, locked=touched).warnings == ()
    (tmp_path / "w").write_bytes(b"12345")
    (warning,) = resolve(wanted, locked=result.entry).warnings
    assert "trainctl.lock" in warning.summary
    assert resolve(wanted, locked=result.entry, upgrade=True).warnings == ()


@dataclass
class Locked:
    """A source in a bucket that was resolved and locked, an empty mirror, and the source now."""

    request: SourceRequest
    first: Resolution
    store: MirrorStore
    source: MemorySource

    def mirror(self) -> None:
        """Copy the locked version to the mirror."""
        ingest(self.store, self.first.resolved, MemorySource(FILES, announce=False))

    def again(self, **options: Any) -> Resolution:
        return resolve(
            self.request,
            **{"locked": self.first.entry, "store": self.store, **options},
            retry=immediate_retry(),
            open_source=lambda scheme: self.source,
        )

    def without_credential(self, error: TrainctlError, **options: Any) -> Resolution:
        """Resolve the source although its credential is missing."""
        return resolve_from_lock(
            self.request,
            error,
            **{"locked": self.first.entry, "upgrade": False, "store": self.store, **options},
            open_source=lambda scheme: self.source,
        )

    def assert_kept(self, resolution: Resolution) -> Diagnostic:
        """The locked version is used, with the one warning that is returned."""
        entry = self.first.entry
        assert (resolution.resolved.pin, resolution.entry) == (entry.pin, entry)
        assert resolution.locked
        (warning,) = resolution.warnings
        assert warning.severity.value == "warning"
        return warning


@pytest.fixture
def locked(tmp_path: Path) -> Locked:
    source = MemorySource(FILES, announce=False)
    request = SourceRequest(WeightsSpec("s3://bucket/p"), tmp_path)
    first = resolve(request, open_source=lambda scheme: source)
    return Locked(request, first, mirror_at(tmp_path / "mirror"), source)


def test_a_changed_bucket_is_read_from_the_mirror(locked: Locked) -> None:
    """The locked version is used if the mirror has all of it; otherwise that is an error."""
    locked.source = MemorySource({"a.json": b"{}!", "new": b"1"}, announce=False)
    with pytest.raises(
        SourceMismatch, match=r"pinned in trainctl\.lock is no longer available upstream"
    ) as unmirrored:
        locked.again()
    locked.mirror()
    kept = locked.again()
    (survey,) = locked.store.survey([kept.resolved]).sources

    assert "It had 2 files (6 B) and now has 2 files (4 B)." in unmirrored.value.detail
    assert "--upgrade" in unmirrored.value.detail
    assert survey.here == 6
    changes = locked.assert_kept(kept).detail.splitlines()[1:4]
    assert changes == ["added: new", "changed: a.json", "removed: w.bin"]
    moved = locked.again(upgrade=True)
    assert (moved.resolved.size, moved.locked, moved.warnings) == (4, False, ())


def test_an_emptied_bucket_is_read_from_the_mirror(locked: Locked) -> None:
    locked.source = MemorySource({})
    with pytest.raises(SourceNotFound, match="contains no files") as lost:
        locked.again()
    locked.mirror()
    assert "The mirror doesn't contain the locked version." in lost.value.detail
    assert "not found upstream" in locked.assert_kept(locked.again()).summary


@pytest.mark.parametrize("case", cases("sources/locked_without_upstream"))
def test_locked_weights_in_the_mirror_need_no_upstream(
    locked: Locked, request: pytest.FixtureRequest, case: dict[str, Any]
) -> None:
    """Nor a credential; but an error that its user must repair is reported."""
    kind = getattr(errors, case["error"])
    options = {"code": case["code"]} if "code" in case else {}
    error = kind(request.node.callspec.id, **options)
    again = locked.again
    if case.get("of") == "credential":
        again = partial(locked.without_credential, error)
    else:
        locked.source = FailingSource(error)
    refused = pytest.raises(kind, match=re.escape(error.summary))
    with refused as lost:
        again()
    locked.mirror()
    if case["uses_mirror"]:
        warning = locked.assert_kept(again())
        assert warning.code == error.code
        assert error.summary in warning.detail
    else:
        with refused:
            again()
    if case["uses_mirror"] and "of" not in case:
        assert "The mirror doesn't contain the locked version." in lost.value.detail
    for changed in ({"locked": None}, {"upgrade": True}):
        with refused:
            again(**changed)


def test_declared_content_in_the_mirror_needs_no_upstream(tmp_path: Path) -> None:
    """Unless the manifest declares another digest by now."""
    upstream = MemorySource({"w.bin": b"0123"})
    store = mirror_at(tmp_path / "mirror")
    sha256 = hashlib.sha256(b"0123").hexdigest()
    request = SourceRequest(WeightsSpec("https://example.com/w.bin", sha256=sha256), tmp_path)
    first = resolve(request, open_source=lambda scheme: upstream)
    ingest(store, first.resolved, upstream)
    failing = FailingSource(SourceDenied("no"))
    options: Any = {"locked": first.entry, "store": store, "open_source": lambda scheme: failing}

    assert resolve(request, **options).resolved.pin == first.entry.pin
    other = replace(request.weights, sha256="0" * 64)
    with pytest.raises(SourceDenied):
        resolve(replace(request, weights=other), **options)


def test_unmatched_patterns_are_handed_back(tmp_path: Path) -> None:
    """A pattern without a file is no error as long as files are left; each comes with what was probably meant."""
    allowed, ignored = ("*.jsn", "*.json", "w.bn"), ("*.md",)
    spec = WeightsSpec("hf://a/b", allow_patterns=allowed, ignore_patterns=ignored)
    request = SourceRequest(spec, tmp_path)
    result = resolve(request, open_source=lambda scheme: MemorySource(FILES))
    assert result.unmatched == {"*.jsn": "*.json", "w.bn": "w.bin", "*.md": None}
    assert [file.path for file in result.resolved.files] == ["a.json"]


def test_the_pin_is_over_the_chosen_files(tmp_path: Path) -> None:
    """A file that no pattern wants moves neither pin nor revision of a source without revisions."""
    (tmp_path / "w").write_bytes(b"1")
    (tmp_path / "v").write_bytes(b"1")
    wanted = SourceRequest(WeightsSpec("file:.", allow_patterns=("w", "v")), tmp_path)
    before = resolve(wanted).resolved
    (tmp_path / "notes.txt").write_text("x")
    after = resolve(wanted).resolved
    assert (after.pin, after.revision) == (before.pin, before.revision)


def test_what_many_want_is_asked_for_once(tmp_path: Path) -> None:
    """Upstream answers once for each source, revision and credential, also with an error; patterns are each one's own."""
    hub = CountingSource(FILES)
    once: SingleFlight[ResolvedSource] = SingleFlight()

    def files_of(
        source: str, *allowed: str, credential: SourceCredential | None = None
    ) -> list[str]:
        wanted = SourceRequest(WeightsSpec(source, allow_patterns=allowed), tmp_path)
        result = resolve(wanted, credential, open_source=lambda scheme: hub, once=once)
        return [file.path for file in result.resolved.files]

    with ThreadPoolExecutor(8) as pool:
        everything = list(pool.map(lambda number: files_of("hf://a/b"), range(8)))
    assert everything == [sorted(FILES)] * 8
    assert files_of("hf://a/b", "*.json") == [name for name in sorted(FILES) if "json" in name]
    assert hub.resolved == 1
    files_of("hf://a/b@next")
    files_of("hf://a/b", credential=SourceCredential("another", "test"))
    assert hub.resolved == 3
    hub.missing = True
    for _ in range(2):
        with pytest.raises(SourceNotFound, match="gone"):
            files_of("hf://a/c")
    assert hub.resolved == 4


class FailingSource(MemorySource):
    """Raises the same error for each request."""

    def __init__(self, failure: SourceError) -> None:
        super().__init__({})
        self.failure = failure

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        # a new exception each time, as retries add to its detail
        raise type(self.failure)(self.failure.summary, self.failure.detail, code=self.failure.code)


@dataclass
class CountingSource(MemorySource):
    """Counts what it is asked; slow enough for many to ask at once."""

    resolved: int = 0
    missing: bool = False

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        with self.lock:
            self.resolved += 1
        time.sleep(0.05)
        if self.missing:
            raise SourceNotFound("gone")
        return super().resolve(uri, revision, credential)

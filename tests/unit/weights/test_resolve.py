from __future__ import annotations

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.servers.hub import serve
from tests.support.storage.mirrors import MemorySource, immediate_retry, ingest, mirror_at
from trainctl.base.listing import ResolvedSource
from trainctl.errors import (
    PermissionDenied,
    SecretUnavailable,
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
)
from trainctl.model.single_flight import SingleFlight
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources import source_for
from trainctl.sources.hf import HubSource
from trainctl.weights.lock import LockEntry
from trainctl.weights.resolution import Resolution, SourceRequest, resolve, resolve_from_lock

FILES = {"a.json": b"{}", "w.bin": b"0123"}


def test_a_locked_commit_is_what_is_resolved(tmp_path: Path) -> None:
    """With a lock entry the branch may move: the old commit comes, until ``upgrade``."""
    with serve() as hub:
        first = hub.add("acme/model", FILES)
        wanted = SourceRequest("hf://acme/model@main", tmp_path)

        def again(**options: object) -> Resolution:
            return resolve(wanted, open_source=lambda scheme: HubSource(hub.url), **options)  # type: ignore[arg-type]

        entry = again().entry
        assert (entry.source, entry.revision, entry.files, entry.bytes) == (
            wanted.source,
            first,
            2,
            6,
        )
        second = hub.add("acme/model", {**FILES, "a.json": b"[]"})
        locked, moved = again(locked=entry), again(locked=entry, upgrade=True)
    assert (locked.resolved.revision, locked.locked, locked.resolved.pin) == (
        first,
        True,
        entry.pin,
    )
    assert (moved.resolved.revision, moved.locked) == (second, False)
    (told,) = locked.warnings
    assert (told.code, moved.warnings) == ("upstream-changed", ())
    assert first in told.detail
    assert second in told.detail
    assert moved.entry.pin != entry.pin


def test_a_locked_commit_outlives_its_branch(tmp_path: Path) -> None:
    """A branch that is deleted upstream takes nothing from who has locked its commit."""
    with serve() as hub:
        commit = hub.add("acme/model", FILES, branch="next")
        wanted = SourceRequest("hf://acme/model@next", tmp_path)
        entry = resolve(wanted, open_source=lambda scheme: HubSource(hub.url)).entry
        del hub.repos["models", "acme/model"].refs["next"]
        found = resolve(wanted, locked=entry, open_source=lambda scheme: HubSource(hub.url))
        with pytest.raises(SourceNotFound, match="revision not found"):
            resolve(wanted, open_source=lambda scheme: HubSource(hub.url))

    assert (found.resolved.revision, found.warnings) == (commit, ())


def test_patterns_that_leave_nothing_say_what_was_probably_meant(tmp_path: Path) -> None:
    """Each is named with the nearest that has files."""
    with pytest.raises(SourceNotFound, match="matches the patterns") as caught:
        resolve(
            SourceRequest("hf://a/b", tmp_path, ("*.jsn", "zzz")),
            open_source=lambda scheme: MemorySource(FILES),
        )
    assert "'*.jsn' matches no file; did you mean '*.json'?" in caught.value.detail
    assert "'zzz' matches no file." in caught.value.detail


def test_other_files_at_a_locked_commit_are_refused(tmp_path: Path) -> None:
    """A commit that shows other files than were pinned is SourceMismatch that says how to accept it."""
    source = MemorySource(FILES)
    wanted = SourceRequest("hf://acme/model", tmp_path)
    entry = resolve(wanted, open_source=lambda scheme: source).entry
    source.files = {**FILES, "w.bin": b"4567"}
    with pytest.raises(SourceMismatch, match=r"files at commit 1 differ .*\n.*--upgrade"):
        resolve(wanted, locked=entry, open_source=lambda scheme: source)
    assert not resolve(wanted, locked=entry, upgrade=True, open_source=lambda scheme: source).locked


def test_a_directory_that_changed_is_a_warning(tmp_path: Path) -> None:
    """Nothing identifies a path on other machines, so its lock binds nobody: other sizes than locked warn, other times do not."""
    (tmp_path / "w").write_bytes(b"1234")
    wanted = SourceRequest("file:.", tmp_path)
    found = resolve(wanted)
    assert found.entry.revision == found.resolved.files[0].validator
    touched = replace(found.entry, pin="sha256:of another machine")
    assert resolve(wanted, locked=touched).warnings == ()
    (tmp_path / "w").write_bytes(b"12345")
    (warning,) = resolve(wanted, locked=found.entry).warnings
    assert "trainctl.lock" in warning.summary
    assert resolve(wanted, locked=found.entry, upgrade=True).warnings == ()


@pytest.mark.parametrize(
    "source", ["s3://bucket/p", "gs://bucket/p", "azure://account/container/p"]
)
def test_what_a_bucket_lost_comes_from_the_mirror(tmp_path: Path, source: str) -> None:
    """The locked version is used where the mirror has all of it, the warning says what moved; without it that is an error."""
    upstream = MemorySource(FILES, announce=False)
    store = mirror_at(tmp_path / "mirror")
    wanted = SourceRequest(source, tmp_path)
    first = resolve(wanted, open_source=lambda scheme: upstream)
    upstream.files = {"a.json": b"{}!", "new": b"1"}

    with pytest.raises(
        SourceMismatch, match=r"pinned in trainctl\.lock is no longer available upstream"
    ) as unmirrored:
        resolve(wanted, locked=first.entry, store=store, open_source=lambda scheme: upstream)
    listing = ingest(store, first.resolved, MemorySource(FILES, announce=False))
    kept = resolve(wanted, locked=first.entry, store=store, open_source=lambda scheme: upstream)
    (survey,) = store.survey([kept.resolved]).sources

    assert "It had 2 files (6 B) and now has 2 files (4 B)." in unmirrored.value.detail
    assert "--upgrade" in unmirrored.value.detail
    assert (kept.resolved.pin, kept.entry, kept.locked) == (first.entry.pin, first.entry, True)
    assert (survey.listing, survey.here) == (listing.id, 6)
    (told,) = kept.warnings
    assert told.detail.splitlines()[1:4] == ["added: new", "changed: a.json", "removed: w.bin"]


def test_a_bucket_that_is_empty_by_now_is_read_from_the_mirror(tmp_path: Path) -> None:
    """What is gone upstream is used as it was locked, if the mirror has it; else upstream's own error says so."""
    upstream = MemorySource(FILES, announce=False)
    store = mirror_at(tmp_path / "mirror")
    wanted = SourceRequest("s3://bucket/p", tmp_path)
    first = resolve(wanted, open_source=lambda scheme: upstream)
    gone = MemorySource({})
    with pytest.raises(SourceNotFound, match="contains no files") as lost:
        resolve(wanted, locked=first.entry, store=store, open_source=lambda scheme: gone)
    ingest(store, first.resolved, upstream)
    kept = resolve(wanted, locked=first.entry, store=store, open_source=lambda scheme: gone)
    assert "The mirror doesn't contain the locked version." in lost.value.detail
    assert kept.resolved.pin == first.entry.pin
    assert "not found upstream" in kept.warnings[0].summary


UNASKED = [
    SourceDenied("requires authentication (401)", "Declare a secret."),
    SourceUnavailable("is unavailable (503)"),
    SourceInterrupted("ended early"),
    SourceUnreachable("nobody answers"),
    SourceError("answered 400"),
    SourceError("unexpected response (not JSON)", code="invalid-hub-response"),
    SourceError("its redirects go in a circle", code="unsafe-redirect"),
    SourceError("the certificate is not trusted", code="untrusted-certificate"),
    SourceError("the proxy wants a login (407)", code="unusable-proxy"),
]


@pytest.mark.parametrize("failure", UNASKED, ids=lambda one: one.code)
@pytest.mark.parametrize("source", ["hf://acme/model", "s3://bucket/p"])
def test_what_is_locked_and_mirrored_needs_no_answer(
    tmp_path: Path, source: str, failure: SourceError
) -> None:
    """Who can't be asked takes nothing from who has it: the locked version is used and said so; without it, or without a lock, it is the error."""
    upstream = MemorySource(FILES, announce=False)
    store = mirror_at(tmp_path / "mirror")
    wanted = SourceRequest(source, tmp_path)
    first = resolve(wanted, open_source=lambda scheme: upstream)

    def again(locked: LockEntry | None, *, upgrade: bool = False) -> Resolution:
        return resolve(
            wanted,
            locked=locked,
            upgrade=upgrade,
            store=store,
            retry=immediate_retry(),
            open_source=lambda scheme: SilentSource(failure),
        )

    with pytest.raises(type(failure), match=re.escape(failure.summary)) as lost:
        again(first.entry)
    ingest(store, first.resolved, upstream)
    kept = again(first.entry)

    assert "The mirror doesn't contain the locked version." in lost.value.detail
    assert (kept.resolved.pin, kept.entry, kept.locked) == (first.entry.pin, first.entry, True)
    (told,) = kept.warnings
    assert (told.severity.value, told.code) == ("warning", failure.code)
    assert failure.summary in told.detail
    for unlocked in ({"locked": None}, {"locked": first.entry, "upgrade": True}):
        with pytest.raises(type(failure)):
            again(**unlocked)


ANSWERED = [
    SourceMismatch("the bytes are others"),
    SourceError("the file name leaves its directory", code="unsafe-file-name"),
    SourceError("no server", code="invalid-endpoint"),
]


@pytest.mark.parametrize("failure", ANSWERED, ids=lambda one: one.code)
def test_what_upstream_or_its_user_must_mend_stays_an_error(
    tmp_path: Path, failure: SourceError
) -> None:
    """It is mirrored and locked, and yet something is known to be wrong."""
    upstream = MemorySource(FILES, announce=False)
    store = mirror_at(tmp_path / "mirror")
    wanted = SourceRequest("s3://bucket/p", tmp_path)
    first = resolve(wanted, open_source=lambda scheme: upstream)
    ingest(store, first.resolved, upstream)

    with pytest.raises(type(failure), match=re.escape(failure.summary)):
        resolve(
            wanted,
            locked=first.entry,
            store=store,
            open_source=lambda scheme: SilentSource(failure),
        )


@pytest.mark.parametrize(
    ("why", "stands_in"),
    [
        (SecretUnavailable("secret 'x': vault exited with 2"), True),
        (SourceDenied("AWS does not give role reader (AccessDenied)"), True),
        (SourceUnreachable("AWS can't be asked for role reader"), True),
        (SourceDenied("there is no identity token", code="missing-secret"), False),
        (SourceDenied("secret x is not JSON", code="unusable-secret"), False),
        (TrainctlError("secret 'x' is not declared", code="undeclared-name"), False),
        (PermissionDenied("secret 'x' may not go there"), False),
    ],
    ids=lambda one: one.summary if isinstance(one, TrainctlError) else "",
)
def test_what_is_locked_and_mirrored_needs_no_credential(
    tmp_path: Path, why: TrainctlError, stands_in: bool
) -> None:
    """Who was asked for it and doesn't give it takes nothing from who has it; what is ours to mend is the error, as is what isn't mirrored."""
    upstream = MemorySource(FILES, announce=False)
    store = mirror_at(tmp_path / "mirror")
    wanted = SourceRequest("s3://bucket/p", tmp_path)
    first = resolve(wanted, open_source=lambda scheme: upstream)

    def again(locked: LockEntry | None, *, upgrade: bool = False) -> Resolution:
        return resolve_from_lock(
            wanted,
            why,
            locked=locked,
            upgrade=upgrade,
            store=store,
            open_source=lambda scheme: upstream,
        )

    for unlocked in ({"locked": None}, {"locked": first.entry}):
        with pytest.raises(type(why), match=re.escape(why.summary)):
            again(**unlocked)
    ingest(store, first.resolved, upstream)
    if not stands_in:
        with pytest.raises(type(why), match=re.escape(why.summary)):
            again(first.entry)
        return
    kept = again(first.entry)

    assert (kept.resolved.pin, kept.entry, kept.locked) == (first.entry.pin, first.entry, True)
    (told,) = kept.warnings
    assert (told.severity.value, told.code) == ("warning", why.code)
    assert why.summary in told.detail
    with pytest.raises(type(why)):
        again(first.entry, upgrade=True)


def test_what_a_manifest_declares_the_digest_of_needs_no_answer(tmp_path: Path) -> None:
    """Content of a digest that the manifest declares and the mirror has is used, unless it declares another by now."""
    upstream = MemorySource({"w.bin": b"0123"})
    store = mirror_at(tmp_path / "mirror")
    sha256 = hashlib.sha256(b"0123").hexdigest()
    wanted = SourceRequest("https://example.com/w.bin", tmp_path, sha256=sha256)
    first = resolve(wanted, open_source=lambda scheme: upstream)
    ingest(store, first.resolved, upstream)

    def again(wanted: SourceRequest) -> Resolution:
        silent = SilentSource(SourceDenied("no"))
        return resolve(wanted, locked=first.entry, store=store, open_source=lambda scheme: silent)

    assert again(wanted).resolved.pin == first.entry.pin
    with pytest.raises(SourceDenied):
        again(replace(wanted, sha256="0" * 64))


def test_unmatched_patterns_are_handed_back(tmp_path: Path) -> None:
    """A pattern without a file is no error as long as files are left; each comes with what was probably meant."""
    found = resolve(
        SourceRequest("hf://a/b", tmp_path, ("*.jsn", "*.json", "w.bn"), ("*.md",)),
        open_source=lambda scheme: MemorySource(FILES),
    )
    assert found.unmatched == {"*.jsn": "*.json", "w.bn": "w.bin", "*.md": None}
    assert [file.path for file in found.resolved.files] == ["a.json"]


def test_the_pin_is_over_the_chosen_files(tmp_path: Path) -> None:
    """A file that no pattern wants moves neither pin nor revision of a source without revisions."""
    (tmp_path / "w").write_bytes(b"1")
    (tmp_path / "v").write_bytes(b"1")
    wanted = SourceRequest("file:.", tmp_path, allow=("w", "v"))
    before = resolve(wanted).resolved
    (tmp_path / "notes.txt").write_text("x")
    after = resolve(wanted).resolved
    assert (after.pin, after.revision) == (before.pin, before.revision)


def test_a_busy_upstream_is_asked_again(tmp_path: Path) -> None:
    """Retryable errors are tried again as often as patience says, others not."""

    class Busy(MemorySource):
        left = 2

        def resolve(self, uri, revision, credential):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left >= 0:
                raise SourceUnavailable("busy")
            return super().resolve(uri, revision, credential)

    wanted = SourceRequest("hf://a/b", tmp_path)
    assert resolve(
        wanted, retry=immediate_retry(3), open_source=lambda scheme: Busy(FILES)
    ).resolved.files
    with pytest.raises(SourceUnavailable):
        resolve(wanted, retry=immediate_retry(2), open_source=lambda scheme: Busy(FILES))


def test_what_can_not_be_mirrored_is_a_source_error(tmp_path: Path) -> None:
    """A text that is no source, and a scheme that nobody implements, are errors with advice."""
    with pytest.raises(SourceError):
        resolve(SourceRequest("nonsense", tmp_path))
    with pytest.raises(SourceError, match="are not supported"):
        source_for("bdn")


def test_what_many_want_is_asked_for_once(tmp_path: Path) -> None:
    """Upstream answers once for each source, revision and credential, also with an error; patterns are each one's own."""
    hub = CountingSource(FILES)
    once: SingleFlight[ResolvedSource] = SingleFlight()

    def files_of(
        source: str, *allowed: str, credential: SourceCredential | None = None
    ) -> list[str]:
        wanted = SourceRequest(source, tmp_path, allowed or None)
        found = resolve(wanted, credential, open_source=lambda scheme: hub, once=once)
        return [file.path for file in found.resolved.files]

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


def test_what_many_are_told_stays_as_it_was_said(tmp_path: Path) -> None:
    """Each says of its own lock what that means, and of nobody else's."""
    hub = CountingSource(FILES, missing=True)
    once: SingleFlight[ResolvedSource] = SingleFlight()
    entry = LockEntry("hf://a/b", None, None, "1", "sha256:0", 1, 1)
    told = []
    for allow in (("*.json",), ("*.bin",)):
        wanted, locked = (
            SourceRequest("hf://a/b", tmp_path, allow),
            replace(entry, allow_patterns=allow),
        )
        with pytest.raises(SourceNotFound) as caught:
            resolve(wanted, locked=locked, open_source=lambda scheme: hub, once=once)
        told.append(caught.value.detail)
    assert told[0] == told[1]
    assert told[0].count("The source is in trainctl.lock.") == 1


class SilentSource(MemorySource):
    """One that only ever fails, in one way."""

    def __init__(self, failure: SourceError) -> None:
        super().__init__({})
        self.failure = failure

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        # Anew each time, as who is patient adds to what an error says.
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

"""Resolve a source to its selected files at an immutable revision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainctl.base.filesystem.safe_path import check_paths, display_path
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.listing import LFS_POINTER, UNKNOWN_SIZE, ResolvedSource, SourceFile
from trainctl.base.retry import RetryFn, RetryPolicy, no_retry
from trainctl.errors import (
    SecretUnavailable,
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    TrainctlError,
)
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.single_flight import SingleFlight
from trainctl.model.source_uri import SourceUri, parse_source
from trainctl.model.specs.resource import WeightsSpec
from trainctl.sources import source_for
from trainctl.sources.file import by_content
from trainctl.weights.lock import (
    LockEntry,
    LockKey,
    fall_back_to_locked,
    version_from_lock,
    version_size_text,
)
from trainctl.weights.patterns import nearest_pattern, select

if TYPE_CHECKING:
    from trainctl.plugin_api.sources import SourceCredential, WeightSource
    from trainctl.store.store import MirrorStore

_PLUGIN_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_UNAVAILABLE_ERRORS = (
    SourceNotFound,
    SourceDenied,
    SourceUnavailable,
    SourceInterrupted,
    SecretUnavailable,
)
"""Errors that tell nothing about the content upstream."""
_FALLBACK_CODES = (
    "source-failed",
    "invalid-hub-response",
    "unsafe-redirect",
    "untrusted-certificate",
    "unusable-proxy",
)
"""Codes of errors by something between here and upstream, such as a proxy or login page."""
_SECRET_CODES = ("missing-secret", "unusable-secret")
"""Codes of a missing or malformed credential, which the user must fix."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """Weights in a manifest of a directory; without ``allow`` patterns, every file is selected."""

    weights: WeightsSpec
    directory: Path

    @property
    def source(self) -> str:
        """The source as in the manifest."""
        return self.weights.source

    @property
    def key(self) -> LockKey:
        """Key in the lock file."""
        return self.lock_entry("", "", 0, 0).key

    def lock_entry(self, revision: str, pin: str, files: int, size: int) -> LockEntry:
        """Return the entry of a version in the lock file."""
        weights = self.weights
        allow, ignore = weights.allow_patterns or None, weights.ignore_patterns or None
        return LockEntry(
            source=weights.source, allow_patterns=allow, ignore_patterns=ignore, revision=revision, pin=pin, files=files, bytes=size,
            endpoint_url=weights.endpoint_url, name=weights.name,
        )  # fmt: skip

    @property
    def uri(self) -> SourceUri:
        """The absolute source; SourceError if it is invalid."""
        try:
            return parse_source(self.source).within(self.directory)
        except ValueError as error:
            raise SourceError(str(error), code="invalid-source") from None


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolved source; ``resolved.source`` is absolute.

    ``entry``: its lock entry. ``locked``: whether the lock file set the revision. ``unmatched``: patterns without a file, with
    a similar one, if any.
    """

    resolved: ResolvedSource
    entry: LockEntry
    locked: bool
    unmatched: Mapping[str, str | None]
    warnings: tuple[Diagnostic, ...]


def query_source(
    source: WeightSource,
    uri: str,
    revision: str | None,
    credential: SourceCredential | None,
    each: RetryFn = no_retry,
) -> ResolvedSource:
    """Return every file of a source, and its endpoint."""
    from trainctl.plugin_api.sources import PagedSource

    endpoint = source.custom_endpoint(uri, credential)
    with plugin_errors(uri):
        if isinstance(source, PagedSource):
            resolved = source.resolve_with(uri, revision, credential, each)
        else:
            resolved = each(lambda: source.resolve(uri, revision, credential))
    return replace(resolved, endpoint=endpoint)


@contextmanager
def plugin_errors(uri: str) -> Iterator[None]:
    """Convert unexpected exceptions of a source to SourceError."""
    try:
        yield
    except _PLUGIN_ERRORS as error:
        raise SourceError(
            f"unexpected response from the server of {uri} ({type(error).__name__})",
            "Check that the URL and endpoint_url are those of the right server.",
        ) from error


def resolve(
    request: SourceRequest,
    credential: SourceCredential | None = None,
    *,
    locked: LockEntry | None = None,
    upgrade: bool = False,
    store: MirrorStore | None = None,
    cancelled: threading.Event | None = None,
    retry: RetryPolicy | None = None,
    open_source: Callable[[str], WeightSource] = source_for,
    once: SingleFlight[ResolvedSource] | None = None,
    memory: Path | None = None,
) -> Resolution:
    """Resolve the selected files by metadata; ``once`` shares requests.

    Local files inside the manifest's directory are read, and their digests stored in ``memory``.

    With a lock entry, and without ``upgrade``, the result is the locked version: from the mirror, if upstream differs or is
    unreachable. SourceMismatch if the locked version is unavailable.
    """
    uri = request.uri
    sha256 = request.weights.sha256
    pinned_entry = None if upgrade or sha256 else locked
    pinned = f"sha256:{sha256}" if sha256 else None
    if pinned_entry is not None and (
        uri.has_commits or (uri.scheme == "https" and pinned_entry.revision.startswith("sha256:"))
    ):
        pinned = pinned_entry.revision
    source = open_source(uri.scheme)
    each = (retry or RetryPolicy()).each(cancelled or threading.Event())

    fall_back = partial(_fall_back, uri, source, credential, store)
    try:
        all_files = (once or SingleFlight()).get(
            (uri.text, pinned, credential),
            lambda: query_source(source, uri.text, pinned, credential, each),
        )
        resolved, unmatched = _apply_patterns(request, all_files, memory)
        if not uri.has_commits:  # a Hub itself tells LFS files from others
            open_file = partial(source.open, resolved, offset=0, credential=credential)
            _refuse_lfs_pointers(request, resolved.files, open_file, each)
    except (SourceError, SecretUnavailable) as error:
        if not _is_unavailable(error):
            raise
        return _resolve_locked(request, error, locked, fall_back, upgrade=upgrade)
    if locked is not None and not resolved.is_measured and locked.revision == resolved.revision:
        files = tuple(replace(file, size=locked.bytes) for file in resolved.files)
        resolved = replace(resolved, files=files)
    differs = pinned_entry is not None and resolved.pin != pinned_entry.pin
    if pinned_entry is not None and differs and uri.has_commits:
        raise SourceMismatch(
            f"{request.source}: files at commit {pinned_entry.revision} differ from trainctl.lock",
            "A commit never changes, so check the server. If you use a different HF_ENDPOINT on purpose, accept its files with plan --upgrade.",
            code="lock-mismatch",
        )
    if pinned_entry is not None and differs and not uri.is_local:
        mirrored, notice = fall_back(resolved, pinned_entry)
        return Resolution(mirrored, pinned_entry, True, unmatched, (notice,))
    return Resolution(
        resolved,
        request.lock_entry(resolved.revision, resolved.pin, len(resolved.files), resolved.size),
        pinned is not None and pinned_entry is not None,
        unmatched,
        (*_warnings(request, resolved, pinned_entry),),
    )


def resolve_from_lock(
    request: SourceRequest,
    error: TrainctlError,
    *,
    locked: LockEntry | None = None,
    upgrade: bool = False,
    store: MirrorStore | None = None,
    open_source: Callable[[str], WeightSource] = source_for,
) -> Resolution:
    """Resolve without querying upstream because of ``error``."""
    from trainctl.plugin_api.sources import SourceCredential

    if not _is_unavailable(error):
        raise error
    uri, custom_endpoint = request.uri, request.weights.endpoint_url
    anonymous = SourceCredential("", "nobody", custom_endpoint) if custom_endpoint else None
    fall_back = partial(_fall_back, uri, open_source(uri.scheme), anonymous, store)
    return _resolve_locked(request, error, locked, fall_back, upgrade=upgrade)


def _fall_back(
    uri: SourceUri,
    source: WeightSource,
    credential: SourceCredential | None,
    store: MirrorStore | None,
    now: ResolvedSource | TrainctlError,
    locked: LockEntry,
) -> tuple[ResolvedSource, Diagnostic]:
    version = version_from_lock(uri.text, source.custom_endpoint(uri.text, credential), locked)
    return fall_back_to_locked(now, version, locked, store)


def _is_unavailable(error: TrainctlError) -> bool:
    is_other = isinstance(error, SourceError) and error.code in _FALLBACK_CODES
    return is_other or isinstance(error, _UNAVAILABLE_ERRORS)


def _resolve_locked(
    request: SourceRequest,
    error: TrainctlError,
    locked: LockEntry | None,
    fall_back: Callable[[TrainctlError, LockEntry], tuple[ResolvedSource, Diagnostic]],
    *,
    upgrade: bool,
) -> Resolution:
    """Return the locked version with a warning, or raise ``error``."""
    if locked is None or upgrade or request.uri.is_local or error.code in _SECRET_CODES:
        raise error
    if request.weights.sha256 not in (None, locked.revision.removeprefix("sha256:")):
        raise error  # the manifest declares another file
    mirrored, notice = fall_back(error, locked)
    return Resolution(mirrored, locked, True, {}, (notice,))


def _apply_patterns(
    request: SourceRequest, all_files: ResolvedSource, memory: Path | None
) -> tuple[ResolvedSource, Mapping[str, str | None]]:
    """Return the selected files, with a revision, and the patterns without a match."""
    weights = request.weights
    if weights.name:
        named = tuple(replace(file, path=weights.name) for file in all_files.files)
        all_files = replace(all_files, files=named)
    files, unmatched_patterns = select(
        all_files.files, weights.allow_patterns or None, weights.ignore_patterns
    )
    unmatched = {
        pattern: nearest_pattern(pattern, all_files.files) for pattern in unmatched_patterns
    }
    if not files:
        raise _no_files_error(request, all_files, unmatched)
    check_paths(request.source, files)
    resolved = replace(all_files, files=files)
    if request.uri.is_local:
        resolved = by_content(resolved, request.directory, memory)
    if request.uri.scheme == "https" and files[0].sha256:
        # not every response has the size, so it is no part of the identity
        unsized = tuple(replace(file, size=UNKNOWN_SIZE) for file in files)
        resolved = replace(resolved, known_as=replace(resolved, files=unsized).pin)
    if not resolved.revision:
        revision = resolved.files[0].validator if len(files) == 1 else resolved.pin
        resolved = replace(resolved, revision=revision)
    return resolved, unmatched


OpenFile = Callable[[SourceFile], AbstractContextManager[Iterator[bytes]]]
_MOST_READ, _POINTER_SIZES = 8, range(126, 140)  # 125 bytes and the digits of a size


def _refuse_lfs_pointers(
    request: SourceRequest, files: Iterable[SourceFile], open_file: OpenFile, each: RetryFn
) -> None:
    """Raise SourceError for a pointer of Git LFS; from other machines one file of each suffix is read."""
    small = [file for file in files if file.size in _POINTER_SIZES]
    if not request.uri.is_local:
        small = [*{PurePosixPath(file.path).suffix: file for file in small}.values()][:_MOST_READ]
    for file in small:

        def beginning(file: SourceFile = file) -> bytes:
            with open_file(file) as stream:
                return next(stream, b"")

        if each(beginning).startswith(LFS_POINTER):
            raise SourceError(
                f"{request.source}: {display_path(file.path)} is a Git LFS pointer, not the file",
                "Run git lfs pull in the clone that it comes from (in CI: checkout with lfs: true), and copy the files again. Others can be excluded with ignore_patterns.",
                code="lfs-pointer",
            )


def _warnings(
    request: SourceRequest, resolved: ResolvedSource, pinned_entry: LockEntry | None
) -> Iterator[Diagnostic]:
    """Warn about files without a validator, and about a source that differs from its lock entry."""
    if not all(file.identified for file in resolved.files):
        yield warning(
            f"the server of {request.source} reports neither ETag nor Last-Modified",
            "Changes that keep the size are not detected, and interrupted downloads restart from the beginning. Declare a sha256.",
            code="unidentified-source",
        )
    if pinned_entry is None:
        return
    if resolved.newest not in (None, resolved.revision):
        yield warning(
            f"{request.source} has changed upstream since it was locked",
            f"Using {resolved.revision} from trainctl.lock; upstream is at {resolved.newest}. To use the latest revision, run plan --upgrade.",
            code="upstream-changed",
        )
    before, now = (pinned_entry.files, pinned_entry.bytes), (len(resolved.files), resolved.size)
    if request.uri.is_local and before != now:
        yield warning(
            f"{request.source} differs from trainctl.lock",
            f"It had {version_size_text(*before)} and now has {version_size_text(*now)}. The current files are used; to update trainctl.lock, run plan --upgrade.",
            code="lock-mismatch",
        )


def _no_files_error(
    request: SourceRequest, all_files: ResolvedSource, unmatched: Mapping[str, str | None]
) -> SourceError:
    if not all_files.files:
        return SourceNotFound(f"{request.source} contains no files", "Check the name.")
    some = ", ".join(file.path for file in all_files.files[:5] if file.path.isprintable())
    advice = [
        f"{pattern!r} matches no file" + (f"; did you mean {nearest!r}?" if nearest else ".")
        for pattern, nearest in unmatched.items()
    ]
    advice += [
        f"Change allow_patterns or ignore_patterns. Files of the source are for example {some}."
    ]
    return SourceNotFound(
        f"{request.source}: no file of {len(all_files.files)} matches the patterns",
        " ".join(advice),
        code="unmatched-pattern",
    )

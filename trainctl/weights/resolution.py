"""From a source's text to the files that are wanted of it, at a revision that stays what it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trainctl.base.filesystem.safe_path import check_paths
from trainctl.base.listing import ResolvedSource
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
from trainctl.plugin_api.sources import PagedSource, SourceCredential, WeightSource
from trainctl.sources import source_for
from trainctl.store.store import MirrorStore
from trainctl.weights.lock import LockEntry, LockKey
from trainctl.weights.lock_fallback import fall_back_to_locked, version_from_lock, version_size_text
from trainctl.weights.patterns import nearest_pattern, select

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
"""Upstream has nothing, or can't be asked, for want of a credential too: nothing is known to differ from what is locked."""
_FALLBACK_CODES = (
    "source-failed",
    "invalid-hub-response",
    "unsafe-redirect",
    "untrusted-certificate",
    "unusable-proxy",
)
"""Codes where something else answers for it, such as a network's login page or a proxy: that is no word of upstream's, either."""
_SECRET_CODES = ("missing-secret", "unusable-secret")
"""Codes where nobody was asked: what opens the source is not here, or malformed, which the user mends."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What the manifest says of one source. ``allow`` None means every file; patterns as in ``patterns.py``.

    ``sha256`` is what the content of a source of one file must have, in hex; ``endpoint_url`` the server of a bucket.
    """

    source: str
    directory: Path
    allow: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    sha256: str | None = None
    endpoint_url: str | None = None

    @property
    def key(self) -> LockKey:
        """What the lock file knows it by."""
        return self.source, self.allow, self.ignore, self.endpoint_url

    @property
    def uri(self) -> SourceUri:
        """The source, absolute. SourceError where it is none."""
        try:
            return parse_source(self.source).within(self.directory)
        except ValueError as error:
            raise SourceError(str(error), code="invalid-source") from None


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolved source. ``locked`` says that the lock file named the revision; ``unmatched`` are patterns without a file,
    each with the nearest one that has files, if one is near.

    ``resolved.source`` is the source with its path made absolute; ``entry`` is what the lock file would say.
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
    """Every file as the source's server tells, and which server that is; a listing goes on at the page that failed."""
    endpoint = source.custom_endpoint(uri, credential)
    with _plugin_errors(uri):
        if isinstance(source, PagedSource):
            found = source.resolve_with(uri, revision, credential, each)
        else:
            found = each(lambda: source.resolve(uri, revision, credential))
    return replace(found, endpoint=endpoint)


@contextmanager
def _plugin_errors(uri: str) -> Iterator[None]:
    """Sources look at what they are told; what one stumbles over all the same is that source's error, and stops no other."""
    try:
        yield
    except _PLUGIN_ERRORS as error:
        raise SourceError(
            f"unexpected response from the server of {uri} ({type(error).__name__})",
            "Check that the URL and endpoint_url are those of the right server.",
        ) from error


def resolve(
    wanted: SourceRequest,
    credential: SourceCredential | None = None,
    *,
    locked: LockEntry | None = None,
    upgrade: bool = False,
    store: MirrorStore | None = None,
    cancelled: threading.Event | None = None,
    retry: RetryPolicy | None = None,
    open_source: Callable[[str], WeightSource] = source_for,
    once: SingleFlight[ResolvedSource] | None = None,
) -> Resolution:
    """The wanted files, by metadata only. Those who share ``once`` ask upstream once for what they have in common.

    With a lock entry it is what is locked, unless ``upgrade``; where upstream shows something else, or can't be asked, out of
    the mirror.
    SourceError's kinds say what is wrong; SourceMismatch where what is locked can't be had.
    """
    uri = wanted.uri
    followed = None if upgrade or wanted.sha256 else locked
    pinned = _revision_to_ask(uri, wanted, followed)
    source = open_source(uri.scheme)
    each = (retry or RetryPolicy()).each(cancelled or threading.Event())

    def instead(
        now: ResolvedSource | TrainctlError, locked: LockEntry
    ) -> tuple[ResolvedSource, Diagnostic]:
        version = version_from_lock(uri.text, source.custom_endpoint(uri.text, credential), locked)
        return fall_back_to_locked(now, version, locked, store)

    try:
        everything = (once or SingleFlight()).get(
            (uri.text, pinned, credential),
            lambda: query_source(source, uri.text, pinned, credential, each),
        )
        resolved, unmatched = _apply_patterns(wanted, everything)
    except (SourceError, SecretUnavailable) as untold:
        if not _is_unavailable(untold):
            raise
        return _resolve_locked(wanted, untold, locked, instead, upgrade=upgrade)
    differs = followed is not None and resolved.pin != followed.pin
    if followed is not None and differs and uri.scheme == "hf":
        raise _rewritten_error(wanted, followed)
    if followed is not None and differs and uri.scheme != "file":
        kept, told = instead(resolved, followed)
        return Resolution(kept, followed, True, unmatched, (told,))
    return Resolution(
        resolved,
        _lock_entry(wanted, resolved),
        pinned is not None and followed is not None,
        unmatched,
        (
            *_unidentified_warnings(wanted, resolved),
            *_newer_warnings(wanted, resolved, followed),
            *_other_directory_warnings(wanted, resolved, followed),
        ),
    )


def resolve_from_lock(
    wanted: SourceRequest,
    why: TrainctlError,
    *,
    locked: LockEntry | None = None,
    upgrade: bool = False,
    store: MirrorStore | None = None,
    open_source: Callable[[str], WeightSource] = source_for,
) -> Resolution:
    """What ``resolve`` gives where upstream can't be asked, as whoever has its credential doesn't give it; ``why`` is raised where it can't stand in."""
    if not _is_unavailable(why):
        raise why
    uri, custom_endpoint = wanted.uri, wanted.endpoint_url
    nobody = SourceCredential("", "nobody", custom_endpoint) if custom_endpoint else None

    def instead(
        now: ResolvedSource | TrainctlError, locked: LockEntry
    ) -> tuple[ResolvedSource, Diagnostic]:
        source = open_source(uri.scheme)
        version = version_from_lock(uri.text, source.custom_endpoint(uri.text, nobody), locked)
        return fall_back_to_locked(now, version, locked, store)

    return _resolve_locked(wanted, why, locked, instead, upgrade=upgrade)


def _is_unavailable(why: TrainctlError) -> bool:
    is_other = isinstance(why, SourceError) and why.code in _FALLBACK_CODES
    return is_other or isinstance(why, _UNAVAILABLE_ERRORS)


def _resolve_locked(
    wanted: SourceRequest,
    why: TrainctlError,
    locked: LockEntry | None,
    instead: Callable[[TrainctlError, LockEntry], tuple[ResolvedSource, Diagnostic]],
    *,
    upgrade: bool,
) -> Resolution:
    """The locked version, with the warning that says why; what is ours to mend, and what nobody has locked, is the error."""
    held = _usable_lock_entry(wanted, locked, upgrade=upgrade)
    if held is None or wanted.uri.scheme == "file" or why.code in _SECRET_CODES:
        raise why
    kept, told = instead(why, held)
    return Resolution(kept, held, True, {}, (told,))


def _apply_patterns(
    wanted: SourceRequest, everything: ResolvedSource
) -> tuple[ResolvedSource, Mapping[str, str | None]]:
    """What patterns leave of a source, which then has a revision; and the patterns without a file."""
    files, without = select(everything.files, wanted.allow, wanted.ignore)
    unmatched = {pattern: nearest_pattern(pattern, everything.files) for pattern in without}
    if not files:
        raise _no_files_error(wanted, everything, unmatched)
    check_paths(wanted.source, files)
    resolved = replace(everything, files=files)
    if not resolved.revision:
        only = files[0].validator if len(files) == 1 else resolved.pin
        resolved = replace(resolved, revision=only)
    return resolved, unmatched


def _revision_to_ask(
    uri: SourceUri, wanted: SourceRequest, followed: LockEntry | None
) -> str | None:
    """The revision to ask for: what the manifest declares, else what the lock file says where that can be asked for."""
    if wanted.sha256:
        return f"sha256:{wanted.sha256}"
    if followed is None:
        return None
    declared = uri.scheme == "https" and followed.revision.startswith("sha256:")
    return followed.revision if uri.scheme == "hf" or declared else None


def _usable_lock_entry(
    wanted: SourceRequest, locked: LockEntry | None, *, upgrade: bool
) -> LockEntry | None:
    """What is locked, where it may stand for what upstream doesn't tell: not if the manifest declares another digest by now."""
    if locked is None or upgrade:
        return None
    return locked if wanted.sha256 in (None, locked.revision.removeprefix("sha256:")) else None


def _other_directory_warnings(
    wanted: SourceRequest, resolved: ResolvedSource, followed: LockEntry | None
) -> tuple[Diagnostic, ...]:
    """Nothing identifies files of a machine on another one, so their lock binds nobody: other sizes are told."""
    if followed is None or wanted.uri.scheme != "file":
        return ()
    before, now = (followed.files, followed.bytes), (len(resolved.files), resolved.size)
    if before == now:
        return ()
    return (
        warning(
            f"{wanted.source} differs from trainctl.lock",
            f"It had {version_size_text(*before)} and now has {version_size_text(*now)}. The current files are used; to update trainctl.lock, run plan --upgrade.",
            code="lock-mismatch",
        ),
    )


def _newer_warnings(
    wanted: SourceRequest, resolved: ResolvedSource, followed: LockEntry | None
) -> tuple[Diagnostic, ...]:
    """A branch that has moved since it was locked is told; nothing follows it unless somebody says so."""
    if followed is None or resolved.newest in (None, resolved.revision):
        return ()
    return (
        warning(
            f"{wanted.source} has changed upstream since it was locked",
            f"Using {resolved.revision} from trainctl.lock; upstream is at {resolved.newest}. To use the latest revision, run plan --upgrade.",
            code="upstream-changed",
        ),
    )


def _unidentified_warnings(
    wanted: SourceRequest, resolved: ResolvedSource
) -> tuple[Diagnostic, ...]:
    if all(file.identified for file in resolved.files):
        return ()
    return (
        warning(
            f"the server of {wanted.source} reports neither ETag nor Last-Modified",
            "Changes that keep the size are not detected, and interrupted downloads restart from the beginning. Declare a sha256.",
            code="unidentified-source",
        ),
    )


def _lock_entry(wanted: SourceRequest, resolved: ResolvedSource) -> LockEntry:
    return LockEntry(
        source=wanted.source,
        allow_patterns=wanted.allow,
        ignore_patterns=wanted.ignore,
        revision=resolved.revision,
        pin=resolved.pin,
        files=len(resolved.files),
        bytes=resolved.size,
        endpoint_url=wanted.endpoint_url,
    )


def _rewritten_error(wanted: SourceRequest, locked: LockEntry) -> SourceMismatch:
    return SourceMismatch(
        f"{wanted.source}: files at commit {locked.revision} differ from trainctl.lock",
        "A commit never changes, so check the server. If you use a different HF_ENDPOINT on purpose, accept its files with plan --upgrade.",
        code="lock-mismatch",
    )


def _no_files_error(
    wanted: SourceRequest, everything: ResolvedSource, unmatched: Mapping[str, str | None]
) -> SourceError:
    if not everything.files:
        return SourceNotFound(f"{wanted.source} contains no files", "Check the name.")
    some = ", ".join(file.path for file in everything.files[:5] if file.path.isprintable())
    return SourceNotFound(
        f"{wanted.source}: no file of {len(everything.files)} matches the patterns",
        " ".join(
            [
                *(_suggestion(*item) for item in unmatched.items()),
                f"Change allow_patterns or ignore_patterns. Files of the source are for example {some}.",
            ]
        ),
        code="unmatched-pattern",
    )


def _suggestion(pattern: str, nearest: str | None) -> str:
    hint = f"; did you mean {nearest!r}?" if nearest else "."
    return f"{pattern!r} matches no file{hint}"

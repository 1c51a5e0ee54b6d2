"""From a source's text to the files that are wanted of it, at a revision that stays what it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainctl.errors import SourceError, SourceGone, SourceWrong
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.model.source_uri import SourceUri, parse_source
from trainctl.model.units import format_bytes
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.lock import LockEntry
from trainctl.weights.patterns import nearest_pattern, select
from trainctl.weights.retry import Retry
from trainctl.weights.safe_path import check_paths
from trainctl.weights.sources import source_for


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the manifest says of one source. ``allow`` None means every file; patterns as in ``patterns.py``.

    ``sha256`` is what the content of a source of one file must have, in hex.
    """

    source: str
    directory: Path
    allow: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    sha256: str | None = None

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
    ``available`` is False where upstream has another version by now and keeps no older one.
    """

    resolved: ResolvedSource
    entry: LockEntry
    locked: bool
    unmatched: Mapping[str, str | None]
    warnings: tuple[Diagnostic, ...]
    available: bool = True


def resolve(
    wanted: Wanted,
    credential: Credential | None = None,
    *,
    locked: LockEntry | None = None,
    upgrade: bool = False,
    cancelled: threading.Event | None = None,
    retry: Retry | None = None,
    open_source: Callable[[str], WeightSource] = source_for,
) -> Resolution:
    """The wanted files, by metadata only.

    With a lock entry the revision is the locked one, unless ``upgrade``. SourceError's kinds say what is wrong;
    SourceWrong where upstream shows other files at the locked commit than were pinned.
    """
    uri = wanted.uri
    followed = None if upgrade or wanted.sha256 else locked
    pinned = _pinned(uri, wanted, followed)
    source = open_source(uri.scheme)
    everything = (retry or Retry()).run(
        lambda: source.resolve(uri.text, pinned, credential), cancelled or threading.Event()
    )
    files, without = select(everything.files, wanted.allow, wanted.ignore)
    unmatched = {pattern: nearest_pattern(pattern, everything.files) for pattern in without}
    if not files:
        raise _nothing(wanted, everything, unmatched)
    check_paths(wanted.source, files)
    resolved = replace(everything, files=files)
    if not resolved.revision:
        only = files[0].validator if len(files) == 1 else resolved.pin
        resolved = replace(resolved, revision=only)
    kept = _locked_file(uri, resolved, followed) if followed else None
    if kept is not None and followed:
        return Resolution(
            kept, followed, True, unmatched, (_moved(wanted, followed, resolved),), available=False
        )
    warnings = _compare(wanted, resolved, followed, pinned is not None) if followed else ()
    return Resolution(
        resolved,
        _entry(wanted, resolved),
        pinned is not None and followed is not None,
        unmatched,
        (*warnings, *_unidentified(wanted, resolved), *_newer(wanted, resolved, followed)),
    )


def _pinned(uri: SourceUri, wanted: Wanted, followed: LockEntry | None) -> str | None:
    """The revision to ask for: what the manifest declares, else what the lock file says where that can be asked for."""
    if wanted.sha256:
        return f"sha256:{wanted.sha256}"
    if followed is None:
        return None
    declared = uri.scheme == "https" and followed.revision.startswith("sha256:")
    return followed.revision if uri.scheme == "hf" or declared else None


def _locked_file(
    uri: SourceUri, resolved: ResolvedSource, locked: LockEntry
) -> ResolvedSource | None:
    """The locked version of an https source that has moved: a lock entry says all that there is to know of one file."""
    if uri.scheme != "https" or resolved.pin == locked.pin:
        return None
    file = SourceFile(resolved.files[0].path, locked.bytes, locked.revision)
    kept = ResolvedSource(resolved.source, locked.revision, (file,))
    return kept if kept.pin == locked.pin else None


def _moved(wanted: Wanted, locked: LockEntry, now: ResolvedSource) -> Diagnostic:
    return warning(
        f"{wanted.source} is not upstream any more as trainctl.lock pins it",
        f"It was {locked.revision} ({format_bytes(locked.bytes)}) and is {now.revision} "
        f"({format_bytes(now.size)}). The pinned version is used for as long as the mirror has it; "
        "plan --upgrade takes what is there now.",
        code="lock-mismatch",
    )


def _newer(
    wanted: Wanted, resolved: ResolvedSource, followed: LockEntry | None
) -> tuple[Diagnostic, ...]:
    """A branch that has moved since it was locked is told; nothing follows it unless somebody says so."""
    if followed is None or resolved.newest in (None, resolved.revision):
        return ()
    return (
        warning(
            f"{wanted.source} has moved upstream since it was locked",
            f"It is at {resolved.newest} now, and trainctl.lock has {resolved.revision}, which is used. "
            "plan --upgrade takes what is there now.",
            code="upstream-moved",
        ),
    )


def _unidentified(wanted: Wanted, resolved: ResolvedSource) -> tuple[Diagnostic, ...]:
    if all(file.identified for file in resolved.files):
        return ()
    return (
        warning(
            f"{wanted.source}: its server tells neither ETag nor Last-Modified",
            "Other content of the same size would not be noticed, and a transfer that breaks begins anew. "
            "Declare its sha256.",
            code="unidentified-source",
        ),
    )


def _entry(wanted: Wanted, resolved: ResolvedSource) -> LockEntry:
    return LockEntry(
        source=wanted.source,
        allow_patterns=wanted.allow,
        ignore_patterns=wanted.ignore,
        revision=resolved.revision,
        pin=resolved.pin,
        files=len(resolved.files),
        bytes=resolved.size,
    )


def _compare(
    wanted: Wanted, resolved: ResolvedSource, locked: LockEntry, at_commit: bool
) -> tuple[Diagnostic, ...]:
    if resolved.pin == locked.pin:
        return ()
    if at_commit:
        raise SourceWrong(
            f"{wanted.source}: upstream shows other files at commit {locked.revision} than trainctl.lock pins",
            "A commit never changes, so what answers is not what answered then. If you mean another HF_ENDPOINT, "
            "accept it with plan --upgrade.",
            code="lock-mismatch",
        )
    if resolved.source.startswith("file:") and (len(resolved.files), resolved.size) == (
        locked.files,
        locked.bytes,
    ):
        return ()
    return (
        warning(
            f"{wanted.source} is not as trainctl.lock knows it",
            f"It had {locked.files} files ({format_bytes(locked.bytes)}) and has {len(resolved.files)} "
            f"({format_bytes(resolved.size)}), or other content in them. There is no older version to go back to, so what is there now "
            "is used; plan --upgrade accepts it.",
            code="lock-mismatch",
        ),
    )


def _nothing(
    wanted: Wanted, everything: ResolvedSource, unmatched: Mapping[str, str | None]
) -> SourceError:
    if not everything.files:
        return SourceGone(f"{wanted.source}: it holds no files", "Check that it is the right one.")
    some = ", ".join(file.path for file in everything.files[:5] if file.path.isprintable())
    return SourceGone(
        f"{wanted.source}: none of its {len(everything.files)} files is left after the patterns",
        " ".join(
            [
                *(_suggestion(*one) for one in unmatched.items()),
                f"Change allow_patterns or ignore_patterns. It holds for example {some}.",
            ]
        ),
        code="unmatched-pattern",
    )


def _suggestion(pattern: str, nearest: str | None) -> str:
    hint = f"; did you mean {nearest!r}?" if nearest else "."
    return f"{pattern!r} matches none{hint}"

"""What is wrong or missing in a mirror, once more from its sources as they are now."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Container,
    Iterable,
    Mapping,
    NamedTuple,
    Optional,
    TypeVar,
)

from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile
from trainctl.base.retry import Retry
from trainctl.errors import Interrupted, SourceGone, SourceWrong, TrainctlError
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.mirror.layout import named_in
from trainctl.weights.mirror.reception import shorter

U = TypeVar("U")


@dataclass(frozen=True)
class Origin:
    """A source as upstream shows it now, and what opens it."""

    source: WeightSource
    resolved: ResolvedSource
    credential: Credential | None
    retry: Retry


Origins = Callable[[Mapping[str, object], threading.Event], Origin]
"""Where the bytes of a reference come from, by its record; the event ends the patience. SourceError's kinds where upstream does not answer."""
TurnedOut = Callable[[ResolvedSource], Callable[[SourceFile], Optional[str]]]
"""What is recorded of a source: the sha256 that a file turned out to have, where upstream doesn't announce it."""


class Refusal(NamedTuple):
    """Nobody gives a content, and why: it ``is_gone`` where each of its sources says that it hasn't got it; else one of them couldn't be asked."""

    is_gone: bool
    why: str


class Afresh:
    """Asks sources for contents; safe to use from many threads. Of each it is looked once which of its files have ``wanted`` contents,
    and only these are remembered."""

    def __init__(
        self,
        origins: Origins,
        wanted: Container[str],
        turned_out: TurnedOut,
        halt: threading.Event,
    ) -> None:
        self._origins = origins
        self._halt = halt
        self._wanted = wanted
        self._turned_out = turned_out
        self._lock = threading.Lock()
        self._files: dict[tuple[str, str], dict[str, SourceFile]] = {}

    def ask(
        self,
        uses: Iterable[tuple[Mapping[str, Any], ListedFile, U]],
        act: Callable[[Origin, SourceFile, U], None],
    ) -> Refusal | None:
        """Do it with the first source that gives the content; None then. ``uses``: the references that name it, and as which file.

        Whoever has it under several names is asked once. Interrupted where nobody waits for it any more, as that says nothing of the sources.
        """
        one_each = {
            (named_in(record), file.sha256): (record, file, use) for record, file, use in uses
        }
        is_gone, why = True, "" if one_each else "nobody refers to it"
        for record, file, use in one_each.values():
            try:
                act(*self._whence(record, file), use)
            except Interrupted:  # noqa: PERF203  sources are few
                raise
            except (SourceGone, SourceWrong) as error:
                why = why or error.summary
            except TrainctlError as error:
                is_gone, why = False, error.summary
            else:
                return None
        return Refusal(is_gone, why)

    def _whence(self, record: Mapping[str, Any], file: ListedFile) -> tuple[Origin, SourceFile]:
        """Whom to ask for a file, and as what; found out by one thread at a time, as each source is looked through once."""
        with self._lock:
            origin = self._origins(record, self._halt)
            return origin, self._same(origin.resolved, file)

    def _same(self, resolved: ResolvedSource, file: ListedFile) -> SourceFile:
        """The file upstream whose content is, as far as anybody can know, the one that was mirrored."""
        source = (resolved.identity, resolved.pin)
        if source not in self._files:
            self._files[source] = self._known(resolved)
        found = self._files[source].get(file.sha256)
        if found is None or found.size != file.size:
            raise SourceGone(
                f"{resolved.source} has not got the content of {file.path!r} any more",
                "The next apply mirrors what it has now.",
            )
        return found

    def _known(self, resolved: ResolvedSource) -> dict[str, SourceFile]:
        """The files of wanted contents, as upstream tells or as they turned out to be."""
        turned_out = self._turned_out(resolved)
        found: dict[str, SourceFile] = {}
        for file in resolved.files:
            known = file.sha256 or turned_out(file)
            if known is not None and known in self._wanted:
                found[known] = file
        return found


def read_again(
    origin: Origin,
    file: SourceFile,
    offset: int,
    length: int,
    sha256: str,
    halt: threading.Event,
) -> bytes:
    """Those bytes of the file; ``halt`` ends the patience. SourceWrong where upstream has others."""

    def attempt() -> bytes:
        found = bytearray()
        with origin.source.open(origin.resolved, file, offset, origin.credential) as pieces:
            while len(found) < length and (piece := next(pieces, b"")):
                found += piece
        if len(found) < length:
            raise shorter(origin.resolved.source, file, offset + len(found))
        return bytes(found[:length])

    data = origin.retry.run(attempt, halt)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise other_content(origin, file)
    return data


def other_content(origin: Origin, file: SourceFile) -> SourceWrong:
    """What upstream gives is not what was mirrored, by whatever it was known."""
    return SourceWrong(f"{origin.resolved.source}: {file.path!r} has other content now")

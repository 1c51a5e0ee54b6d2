"""The bytes of what is wrong here, once more from their source as that is now."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Set
from dataclasses import dataclass, field

from trainctl.errors import SourceGone, SourceWrong
from trainctl.model.files import ListedFile, ResolvedSource, SourceFile
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.mend import Origin


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
        return bytes(found[:length])

    data = origin.retry.run(attempt, halt)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SourceWrong(f"{origin.resolved.source}: {file.path!a} has other content now")
    return data


@dataclass(frozen=True)
class Afresh:
    """Of each source it is looked once which of its files have ``wanted`` contents, and only these are remembered."""

    shelf: Shelf
    wanted: Set[str]
    _files: dict[tuple[str, str], dict[str, SourceFile]] = field(default_factory=dict)
    """By source and pin, by sha256."""

    def same(self, resolved: ResolvedSource, file: ListedFile) -> SourceFile:
        """The file upstream whose content is, as far as anybody can know, the one that was mirrored; SourceGone where there is none. For one thread at a time."""
        source = (resolved.identity, resolved.pin)
        if source not in self._files:
            self._files[source] = self._known(resolved)
        found = self._files[source].get(file.sha256)
        if found is None or found.size != file.size:
            raise SourceGone(
                f"{resolved.source} has not got the content of {file.path!a} any more",
                "The next apply mirrors what it has now.",
            )
        return found

    def _known(self, resolved: ResolvedSource) -> dict[str, SourceFile]:
        """The files of wanted contents, as upstream tells or as their fingerprints turned out to be."""
        turned = self._turned(resolved)
        found: dict[str, SourceFile] = {}
        for file in resolved.files:
            known = file.sha256 or (turned and turned.get(fingerprint(resolved, file)))
            if known in self.wanted:
                found[str(known)] = file
        return found

    def _turned(self, resolved: ResolvedSource) -> dict[str, str]:
        with long.opened(self.shelf.objects, keys.record(resolved)) as path:
            if path is None:
                return {}
            with path.open("rb") as stream:
                pairs = long.fingerprints_in(stream)
                return {one: sha256 for one, sha256 in pairs if sha256 in self.wanted}

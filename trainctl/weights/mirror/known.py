"""What a mirror can tell of a source before anything moves: each file's content where it is known, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import by_fingerprint, present
from trainctl.weights.mirror.layout import Layout


@dataclass(frozen=True)
class Known:
    """Of each file ``(sha256, size, here)``, sha256 None where nobody knows it yet; the listing if all are here."""

    files: tuple[tuple[str | None, int, bool], ...]
    listing: str | None

    @property
    def size(self) -> int:
        """All bytes of the source."""
        return sum(size for _, size, _ in self.files)

    @property
    def here(self) -> int:
        """The bytes that are in the mirror."""
        return sum(size for _, size, here in self.files if here)

    @property
    def digests(self) -> frozenset[str]:
        """The content that is known, by sha256."""
        return frozenset(sha256 for sha256, _, _ in self.files if sha256)


def known(mirror: DirectoryMirror, resolved: ResolvedSource) -> Known:
    """Look without writing. StorageError where the mirror can't be read."""
    groups = by_fingerprint(resolved)
    with explained(mirror.root):
        contents = present(Layout(mirror.root, mirror.chunk_bytes), resolved.source, groups)
    rows = []
    for key, files in groups.items():
        content = contents.get(key)
        rows += [
            (content.sha256 if content else file.sha256, file.size, content is not None)
            for file in files
        ]
    _, listing = mirror.mirrored_bytes(resolved)
    return Known(tuple(rows), listing)


def missing(resolved: ResolvedSource, found: Known) -> list[SourceFile]:
    """The files of a source that are not here."""
    files = [file for same in by_fingerprint(resolved).values() for file in same]
    return [file for file, (_, _, here) in zip(files, found.files) if not here]


def stored_bytes(mirror: DirectoryMirror) -> int:
    """The bytes of all content in the mirror, whoever wants it."""
    with explained(mirror.root):
        blobs = (mirror.root / "blobs").rglob("*")
        return sum(path.stat().st_size for path in blobs if path.is_file())

"""What a bucket's mirror can tell before anything moves, and who refers to what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainctl.model.files import Listing, ResolvedSource, SourceFile
from trainctl.node.content.packed import packed
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.beating import watched
from trainctl.weights.bucket.in_packs import InPacks
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.mirror.fetch import by_fingerprint, parts
from trainctl.weights.mirror.known import Known, Row
from trainctl.weights.mirror.layout import Content, fingerprint
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.partial import Arrived


def look_at(shelf: Shelf, resolved: ResolvedSource) -> Known:
    """What is known of a source."""
    whole = shelf.whole(resolved)
    if whole is not None:
        return Known(packed(_rows_of(whole), tuple, lambda *row: row), whole.id)
    looking = Looking(shelf, resolved)
    rows = packed(_rows(looking, resolved), tuple, lambda *row: row)
    return Known(rows, None, _arrived(shelf, looking, resolved, rows))


def _rows_of(whole: Listing) -> Iterator[Row]:
    return ((file.sha256, file.size, True) for file in whole.files)


def _arrived(
    shelf: Shelf, looking: Looking, resolved: ResolvedSource, rows: Sequence[Row]
) -> dict[int, Arrived]:
    """Of the files that aren't there, by their places, what is of each."""
    chunks, found = looking.marks.chunks, {}
    for number, (file, (_, size, here)) in enumerate(zip(resolved.files, rows, strict=True)):
        some = chunks.get(fingerprint(resolved, file)) if chunks and not here else None
        if some:
            good = min(size, len(some) * shelf.chunk_bytes)
            found[number] = Arrived(good, good)
    return found


def _rows(looking: Looking, resolved: ResolvedSource) -> Iterator[Row]:
    for part in parts(resolved):
        found = looking.have(by_fingerprint(part)).contents
        for file in part.files:
            here = found.get(fingerprint(part, file))
            yield here.sha256 if here else file.sha256, file.size, here is not None


@dataclass(frozen=True)
class Here:
    """What is there of some files of a source: by fingerprint, and in which packs the small ones of it are."""

    contents: dict[str, Content]
    packs: frozenset[str]


class Looking:
    """Looks for what is there of a source that isn't whole: it is asked for one by one, or looked for in packs, unless a listing says so."""

    def __init__(self, shelf: Shelf, resolved: ResolvedSource) -> None:
        self._shelf = shelf
        self._earlier = shelf.turned_out(resolved)
        self.marks = shelf.marked(resolved)
        hinted = {pack for one in self._earlier.listings for pack in packs.hinted(shelf, one)}
        self._packs = InPacks(shelf.objects, hinted | set(self.marks.packs))

    def have(self, groups: Mapping[str, list[SourceFile]]) -> Here:
        """What is there of these files."""
        sizes = {one: files[0].size for one, files in groups.items()}
        found = self._earlier.find(sizes)
        is_small = self._shelf.is_small
        earlier = {one.sha256 for one in found.values() if is_small(one.size)}
        marked = self.marks.whole.find(one for one in groups if one not in found)
        likely = {
            one: (sha256, sizes[one])
            for one, files in groups.items()
            if one not in found and (sha256 := marked.get(one) or files[0].sha256)
        }
        large = {one: named for one, named in likely.items() if not is_small(named[1])}
        answers = at_once(lambda one: self._shelf.content(*one), list(large.values()))
        found.update({one: content for one, content in zip(large, answers, strict=True) if content})
        small = {one: named for one, named in likely.items() if one not in large}
        places = self._packs.find({sha256 for sha256, _ in small.values()})
        found.update({one: Content(*named) for one, named in small.items() if named[0] in places})
        used = {*places.values(), *self._packs.known(earlier).values()}
        return Here(found, frozenset(used))


def referred(shelf: Shelf) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    listed = list(shelf.objects.list(keys.REFERENCES))
    documents = at_once(lambda one: shelf.document(one.key), listed)
    return [
        watched(one.key, record, one.modified)
        for one, record in zip(listed, documents, strict=True)
        if record
    ]

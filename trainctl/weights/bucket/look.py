"""What a bucket's mirror can tell before anything moves, and who refers to what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainctl.base.listing import Listing, ResolvedSource, SourceFile
from trainctl.base.packed import packed
from trainctl.errors import StorageError
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.beating import watched
from trainctl.weights.bucket.in_packs import InPacks
from trainctl.weights.bucket.shelf import Shelf, at_once, damaged_reference
from trainctl.weights.mirror.announced import may_be
from trainctl.weights.mirror.checked import reference_in
from trainctl.weights.mirror.fetch import by_fingerprint, parts
from trainctl.weights.mirror.known import Known, Row
from trainctl.weights.mirror.layout import Content, fingerprint
from trainctl.weights.mirror.needs import Need, References
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
    marks, found = looking.marks, {}
    some_are = len(marks.chunks) > 0
    for number, (file, (_, size, here)) in enumerate(zip(resolved.files, rows, strict=True)):
        if some_are and not here and size > shelf.chunk_bytes:
            for chunks in marks.chunks_of([fingerprint(resolved, file)]).values():
                good = min(size, len(chunks) * shelf.chunk_bytes)
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
        listings = (*self._earlier.listings, *self._earlier.lost)
        hinted = {pack for one in listings for pack in packs.hinted(shelf, one)}
        self._packs = InPacks(shelf.objects, hinted | set(self.marks.packs))

    def have(self, groups: Mapping[str, list[SourceFile]]) -> Here:
        """What is there of these files."""
        sizes = {one: files[0].size for one, files in groups.items()}
        earlier = self._earlier.find(sizes)
        found = {
            one: content
            for one, content in earlier.items()
            if may_be(groups[one][0], content.sha256, content.size)
        }
        hints = self._hints(one for one in groups if one not in found)
        is_small = self._shelf.is_small
        packed = {one.sha256 for one in found.values() if is_small(one.size)}
        likely = {
            one: (sha256, sizes[one])
            for one, files in groups.items()
            if one not in found and (sha256 := files[0].sha256 or hints.get(one))
        }
        large = {one: named for one, named in likely.items() if not is_small(named[1])}
        answers = at_once(lambda one: self._shelf.content(*one), list(large.values()))
        found.update({one: content for one, content in zip(large, answers, strict=True) if content})
        small = {one: named for one, named in likely.items() if one not in large}
        places = self._packs.find({sha256 for sha256, _ in small.values()})
        found.update({one: Content(*named) for one, named in small.items() if named[0] in places})
        used = {*places.values(), *self._packs.known(packed).values()}
        return Here(found, frozenset(used))

    def _hints(self, fingerprints: Iterable[str]) -> dict[str, str]:
        """What these are said to be, whether it is there or not."""
        wanted = list(fingerprints)
        return {**self._earlier.claims.find(wanted), **self.marks.whole.find(wanted)}


def referred(shelf: Shelf) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    found = references(shelf)
    for problem in found.damaged.values():
        raise problem
    return list(found.needs)


def said(shelf: Shelf, key: str) -> dict[str, Any]:
    """What a reference says; nothing where there is none, or one that is damaged: who writes it says it anew."""
    data = shelf.objects.get(key)
    with suppress(ValueError):
        return {} if data is None else reference_in(data)
    return {}


def damaged_of(shelf: Shelf, lineage: str) -> tuple[str, ...]:
    """What is wrong with references of one state: its project can mend them."""
    found = references(shelf, keys.references(lineage))
    return tuple(error.summary for error in found.damaged.values())


def references(shelf: Shelf, prefix: str = keys.REFERENCES) -> References:
    """The same for who wants to know what there is."""
    listed = list(shelf.objects.list(prefix))
    found: list[Need] = []
    damaged: dict[Path, StorageError] = {}
    data = at_once(lambda one: shelf.objects.get(one.key), listed)
    for one, its in zip(listed, data, strict=True):
        try:
            found += [] if its is None else [watched(one.key, reference_in(its), one.modified)]
        except ValueError as error:
            damaged[Path(one.key)] = damaged_reference(shelf.objects, one.key, str(error))
    return References(tuple(found), damaged, ())

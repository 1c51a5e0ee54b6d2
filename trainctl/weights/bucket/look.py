"""What a bucket's mirror can tell before anything moves, and who refers to what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.node.content.packed import packed
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.beating import watched
from trainctl.weights.bucket.shelf import Earlier, Marks, Shelf, at_once
from trainctl.weights.mirror.fetch import by_fingerprint
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.layout import Content, fingerprint
from trainctl.weights.mirror.needs import Need


@dataclass(frozen=True)
class Here:
    """What is there of a source that isn't whole: by fingerprint, and in which packs the small ones of it are."""

    contents: dict[str, Content]
    packs: frozenset[str]


def look_at(shelf: Shelf, resolved: ResolvedSource) -> Known:
    """What is known of a source."""
    whole = shelf.whole(resolved)
    here = whole.digests if whole is not None else _digests(shelf, resolved)
    rows = (
        (here.get(key) or file.sha256, file.size, whole is not None or key in here)
        for file in resolved.files
        for key in [fingerprint(resolved, file)]
    )
    return Known(packed(rows, tuple, lambda *row: row), whole.listing if whole else None)


def _digests(shelf: Shelf, resolved: ResolvedSource) -> dict[str, str]:
    found = have(shelf, resolved, by_fingerprint(resolved), shelf.marked(resolved))
    return {one: content.sha256 for one, content in found.contents.items()}


def have(
    shelf: Shelf, resolved: ResolvedSource, groups: Mapping[str, list[SourceFile]], marks: Marks
) -> Here:
    """What is there of a source's files: asked for one by one, or looked for in packs, unless a listing says so."""
    earlier = shelf.turned_out(resolved)
    found = dict(earlier.contents)
    likely = {
        one: (sha256, files[0].size)
        for one, files in groups.items()
        if one not in found and (sha256 := marks.whole.get(one) or files[0].sha256)
    }
    large = {one: named for one, named in likely.items() if not shelf.is_small(named[1])}
    answers = at_once(lambda one: shelf.content(*one), list(large.values()))
    found.update({one: content for one, content in zip(large, answers, strict=True) if content})
    small = {one: named for one, named in likely.items() if one not in large}
    places = _in_packs(shelf, earlier, marks, {sha256 for sha256, _ in small.values()})
    found.update({one: Content(*named) for one, named in small.items() if named[0] in places})
    return Here(found, frozenset(place.pack for place in places.values()))


def _in_packs(
    shelf: Shelf, earlier: Earlier, marks: Marks, likely: Set[str]
) -> dict[str, packs.Place]:
    """Where contents are: those of other versions of the source, those that marks speak of, and those that are likely to be in any pack."""
    hinted = {pack for one in earlier.listings for pack in packs.hinted(shelf, one)}
    wanted = likely | {content.sha256 for content in earlier.contents.values()}
    places = packs.find_there(shelf.objects, wanted, hinted | set(marks.packs))
    left = likely - places.keys()
    if left:
        others = packs.newest(shelf.objects, len(left))
        places |= packs.find_there(shelf.objects, left, set(others) - hinted)
    return places


def referred(shelf: Shelf) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    listed = list(shelf.objects.list(keys.REFERENCES))
    documents = at_once(lambda one: shelf.document(one.key), listed)
    return [
        watched(one.key, record, one.modified)
        for one, record in zip(listed, documents, strict=True)
        if record
    ]

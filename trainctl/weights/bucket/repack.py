"""Putting packs together again, of what is still wanted of them. DESIGN.md, "Collection"."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.merging import Double, Remnant
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.shelf import Shelf, at_once


def put_again(
    shelf: Shelf, batches: Sequence[Sequence[Remnant]], go_on: Callable[[], None]
) -> dict[str, str]:
    """Put what is used of the packs of each batch into another; by pack that may go now the one that stands for it.

    A pack with a slice that is wrong stays, for a verification. ``go_on`` is called before each pack, and may raise.
    """
    replaced: dict[str, str] = {}
    for batch in batches:
        contents: dict[str, bytes] = {}
        sound: list[str] = []
        for one in batch:
            slices = packs.load(shelf.objects, one.pack)
            data = None if slices is None else shelf.objects.get(keys.blob(one.pack))
            found = cut(data, one.used(slices or ())) if data is not None else {}
            if len(found) == len(one.places):
                contents |= found
                sound.append(one.pack)
        if sound:
            pack = packs.put_together(contents)
            go_on()
            packs.put(shelf.objects, pack)
            replaced |= dict.fromkeys(sound, pack.sha256)
    if replaced:
        _hint(shelf, replaced)
    return replaced


def still_double(
    shelf: Shelf, doubles: Iterable[Double], replaced: Mapping[str, str]
) -> Iterator[list[str]]:
    """The keys of those that their packs, or what stands for these by now, really have, and that nobody put again; some at a time."""
    for pack, its in groupby(doubles, lambda one: replaced.get(one.pack, one.pack)):
        right = cut(
            shelf.objects.get(keys.blob(pack)) or b"", packs.load(shelf.objects, pack) or ()
        )
        there = [one for one in its if keys.stem(one.alone.key) in right]
        heads = at_once(lambda one: shelf.objects.head(one.alone.key), there)
        yield [
            one.alone.key
            for one, found in zip(there, heads, strict=True)
            if found and one.is_older(found)
        ]


def cut(data: bytes, slices: Iterable[Slice]) -> dict[str, bytes]:
    """Those slices of a pack that are what they should be, by sha256."""
    found = {one.sha256: data[one.offset : one.offset + one.length] for one in slices}
    return {one: part for one, part in found.items() if hashlib.sha256(part).hexdigest() == one}


def _hint(shelf: Shelf, replaced: Mapping[str, str]) -> None:
    """Say where the small files of listings are now."""
    for one in list(shelf.objects.list(keys.PACKS)):
        hinted = packs.hinted(shelf, keys.stem(one.key))
        if not replaced.keys().isdisjoint(hinted):
            shelf.objects.put(one.key, packs.hint({replaced.get(pack, pack) for pack in hinted}))

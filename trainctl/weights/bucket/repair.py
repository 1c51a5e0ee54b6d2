"""What becomes of what is wrong in a bucket: it is fetched again from its source as that is now, or goes with what needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile
from trainctl.weights.bucket import keys, long, packs
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.relisting import listed_anew
from trainctl.weights.bucket.repack import cut
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.mirror.afresh import Afresh, Origin, Origins, read_again
from trainctl.weights.mirror.fetch import SMALL_AT_ONCE
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.port import Own
from trainctl.weights.mirror.relisted import relisted
from trainctl.weights.mirror.verify import Finding, Outcome


class Use(NamedTuple):
    """A content that is a file of a listing, or what begins at ``offset`` of one; ``need`` is None where no reference has the listing."""

    need: Need | None
    listing: str
    file: ListedFile
    offset: int


class Wrong(NamedTuple):
    """An object that is wrong or missing: ``what`` in words, and its size as far as that is known."""

    sha256: str
    what: str
    size: int = 0


class Fetched(NamedTuple):
    """What came of asking for a content: None and why, REMOVED where nobody has it any more, WRONG where somebody could not be asked."""

    data: bytes | None
    outcome: Outcome
    why: str = ""


class WrongPack(NamedTuple):
    """A pack that isn't what its name says, or whose slices aren't, and which of them."""

    pack: str
    wrong: tuple[Slice, ...]


@dataclass(frozen=True)
class Repair:
    """Without ``origins`` it only says what is wrong. ``uses`` are those of the contents that are asked about, as far as they aren't right anywhere.

    ``all_known``: there are no others. Where a reference or its listing is damaged nobody knows who else needs what: nothing goes then that
    nobody is known to need. Small contents are fetched as many at a time as they are mirrored.
    """

    shelf: Shelf
    origins: Origins | None
    uses: Mapping[str, Sequence[Use]] = field(default_factory=dict)
    all_known: bool = True
    own: Own = ()
    """What the caller's own references say."""
    _halt: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def _afresh(self) -> Afresh | None:
        if self.origins is None:
            return None
        wanted = frozenset(use.file.sha256 for uses in self.uses.values() for use in uses)
        return Afresh(self.origins, wanted, partial(turned_out, self.shelf, wanted), self._halt)

    def listing(self, listing_id: str, what: str, found: Sequence[Need]) -> Finding:
        """A listing can't be repaired from itself. It is written anew from what else is known; where that isn't enough the next apply does it,
        and one that nobody needs goes."""
        needs = [need for need in found if listing_id in need.listings]
        outcome, detail = Outcome.WRONG, ""
        if needs and self.origins is not None:
            records = (*(need.record for need in needs), *self.own)
            write = partial(listed_anew, self.shelf, listing_id=listing_id)
            detail = relisted(listing_id, records, self.origins, write, self._halt) or ""
            outcome = Outcome.WRONG if detail else Outcome.REPAIRED
        elif self.all_known:
            outcome = self.gone([keys.listing(listing_id)])
        users = sorted({str(need.record.get("source")) for need in needs})
        return Finding(Path(keys.listing(listing_id)), what, 0, tuple(users), outcome, detail)

    def hint(self, listing_id: str) -> Finding:
        """What says in which packs small files are is made anew when all of them are where they stay."""
        outcome = Outcome.WRONG if self.origins is None else Outcome.REPAIRED
        return Finding(Path(keys.packs(listing_id)), "packs changed", 0, (), outcome)

    def slices(self, pack: str) -> Finding:
        """Nor can a record of slices: what it named is missing then."""
        path = Path(keys.slices(pack))
        return Finding(path, "slices changed", 0, (), self.gone([keys.slices(pack)]))

    def contents(self, wrong: Sequence[Wrong]) -> Iterator[Finding]:
        """Objects, each from whoever has its content still; what nobody has any more goes, and what needs it. Of large ones memory holds one."""
        for small, most in ((True, SMALL_AT_ONCE), (False, 1)):
            some = (one for one in wrong if self._is_small(one.sha256) is small)
            act = partial(self._content, self._afresh)
            for _, finding in in_turn(act, some, most, self._halt):
                yield finding

    def _is_small(self, sha256: str) -> bool:
        return all(self.shelf.is_small(self._length(use)) for use in self.uses.get(sha256, ()))

    def _content(self, afresh: Afresh | None, wrong: Wrong) -> Finding:
        sha256, what, size = wrong
        key, uses = keys.blob(sha256), self.uses.get(sha256, ())
        size = self._length(uses[0]) if uses else size
        if afresh is None:
            return Finding(Path(key), what, size, _sources(uses), Outcome.WRONG)
        data, outcome, detail = self._fetched(afresh, sha256, uses)
        if data is not None:
            self.shelf.objects.put(key, data)
        elif outcome is Outcome.REMOVED:
            self.gone([*_needing(uses), key])
        return Finding(Path(key), what, size, _sources(uses), outcome, detail)

    def pack(self, wrong: WrongPack, right: DiskSet) -> list[Finding]:
        """A pack: put as it was, or where something of it is nowhere any more, what can be had, as objects of their own; as long as a
        source of it can't be asked it stays.

        Both may happen beside a collection: under such names it only takes what nobody needs. What is right elsewhere isn't fetched.
        """
        key, found = keys.blob(wrong.pack), dict[str, Fetched]()
        if self._afresh is not None:
            act = partial(self._slice, self._afresh)
            lost = (one for one in wrong.wrong if digest(one.sha256) not in right)
            fetched = in_turn(act, lost, SMALL_AT_ONCE, self._halt)
            found = {one.sha256: got for one, got in fetched}
        slices = packs.load(self.shelf.objects, wrong.pack)
        stays = any(one.outcome is Outcome.WRONG for one in found.values()) or not self.origins
        if not stays and slices is not None:
            self._settle(wrong.pack, slices, found)
        findings = []
        for one in wrong.wrong:
            its = self.uses.get(one.sha256, ())
            got = found.get(one.sha256, Fetched(None, Outcome.REPAIRED))
            outcome = Outcome.WRONG if stays else got.outcome
            detail = ": ".join(filter(None, (its[0].file.path if its else "", got.why)))
            path = Path(key) / one.sha256
            findings.append(Finding(path, "changed", one.length, _sources(its), outcome, detail))
        if not wrong.wrong:
            outcome = Outcome.WRONG if stays else Outcome.REPAIRED
            findings.append(Finding(Path(key), "changed", 0, (), outcome))
        return findings

    def _settle(self, name: str, slices: Sequence[Slice], found: Mapping[str, Fetched]) -> None:
        """Have the pack, or what of it can be had, right; listings go first that need what can't."""
        contents = cut(self.shelf.objects.get(keys.blob(name)) or b"", slices)
        for sha256, got in found.items():
            if got.data is not None:
                contents[sha256] = got.data
            else:
                self.gone(_needing(self.uses.get(sha256, ())))
        left = {one.sha256: contents[one.sha256] for one in slices if one.sha256 in contents}
        pack = packs.put_together(left)
        if pack.sha256 == name:
            self.shelf.objects.put(keys.blob(pack.sha256), pack.data)
            return
        at_once(lambda one: self.shelf.objects.put(keys.blob(one), left[one]), list(left))
        unwanted = [keys.slices(name), keys.blob(name)]
        self.gone([key for key in unwanted if key not in map(keys.blob, left)])

    def _slice(self, afresh: Afresh, wanted: Slice) -> Fetched:
        return self._fetched(afresh, wanted.sha256, self.uses.get(wanted.sha256, ()))

    def _fetched(self, afresh: Afresh, sha256: str, uses: Sequence[Use]) -> Fetched:
        """The content from any of its sources."""
        found: list[bytes] = []
        if not self.all_known and all(use.need is None for use in uses):
            return Fetched(None, Outcome.WRONG)

        def act(origin: Origin, file: SourceFile, use: Use) -> None:
            length = self._length(use)
            found.append(read_again(origin, file, use.offset, length, sha256, self._halt))

        known = ((use.need.record, use.file, use) for use in uses if use.need is not None)
        refused = afresh.ask(known, act)
        if refused is None:
            return Fetched(found[0], Outcome.REPAIRED)
        outcome = Outcome.REMOVED if refused.is_gone else Outcome.WRONG
        return Fetched(None, outcome, refused.why)

    def _length(self, use: Use) -> int:
        return min(self.shelf.chunk_bytes, use.file.size - use.offset)

    def gone(self, unwanted: Sequence[str]) -> Outcome:
        """Remove them, in that order, where anything is to be repaired."""
        if self.origins is None:
            return Outcome.WRONG
        for key in unwanted:
            self.shelf.objects.delete([key])
        return Outcome.REMOVED


def _sources(uses: Sequence[Use]) -> tuple[str, ...]:
    return tuple(sorted({str(use.need.record.get("source")) for use in uses if use.need}))


def _needing(uses: Iterable[Use]) -> list[str]:
    """What must go before an object that can't be had again."""
    found = {keys.listing(use.listing) for use in uses}
    return sorted(found) + sorted(
        {keys.chunked(use.file.sha256) for use in uses if use.file.chunks}
    )


def turned_out(
    shelf: Shelf, wanted: Set[str], resolved: ResolvedSource
) -> Callable[[SourceFile], str | None]:
    """See TurnedOut; only ``wanted`` contents are remembered. The listing of this very version says it, as long as it is there: its record may have changed."""
    with long.opened(shelf.objects, keys.record(resolved)) as path:
        listing = shelf.listing_if_right(long.listing_in(path) if path else None)
        if path is None or listing is not None:
            files = listing.files if listing else ()
            of_path = {one.path: one.sha256 for one in files if one.sha256 in wanted}
            return lambda file: of_path.get(file.path)
        with path.open("rb") as stream:
            pairs = long.fingerprints_in(stream)
            known = {one: sha256 for one, sha256 in pairs if sha256 in wanted}
    return lambda file: known.get(fingerprint(resolved, file))

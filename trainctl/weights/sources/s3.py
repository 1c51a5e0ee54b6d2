"""``s3:`` sources: a bucket whose listing tells which objects have a sha256, and true names. The engine's tells neither."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from posixpath import basename

from trainctl.base.listing import ResolvedSource, SourceFile, in_order
from trainctl.base.retry import Each
from trainctl.errors import SourceDenied, SourceError, SourceWrong
from trainctl.objects.access import access_of
from trainctl.objects.place import place_of
from trainctl.objects.store import Bucket
from trainctl.spi.sources import Credential, PagedSource, TellingSource, VersionedSource
from trainctl.weights.sources.bucket import LINK_SECONDS, BucketSource, sent_of
from trainctl.weights.sources.http import Redirected
from trainctl.weights.sources.paging import Unasked
from trainctl.weights.sources.remembered import Remembered, place_of_checksums
from trainctl.weights.sources.s3_api import Listed, Lister, Version

_AT_ONCE = 8
_MOST_VERSIONS = 200_000
"""More than that nobody waits for."""
_MOST_ASKED = 2_000
"""Versions that are asked for one by one, where their list doesn't tell of digests."""


class S3Source(BucketSource):
    """A bucket whose content is known by its sha256 where S3 has it, and by its ETag otherwise."""

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        """See BucketSource; of a version of a file, if it is one."""
        version = (resolved.versions or {}).get(file.path)
        if version is None:
            return super().link(resolved, file, credential)
        bucket = self._resolved(resolved, credential)
        return self._lister(bucket, credential).link(file.path, version, LINK_SECONDS)

    def told(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str:
        """See TellingSource. Who asks long after the listing may have a credential that has ended."""
        bucket, version = self._resolved(resolved, credential), (resolved.versions or {})
        try:
            try:
                return self._lister(bucket, credential).told(file, version.get(file.path))
            except SourceDenied:
                if credential is None or credential.renew is None:
                    raise
                renewed = self._lister(bucket, credential.renew())
                return renewed.told(file, version.get(file.path))
        except SourceError as error:
            if error.retryable or isinstance(error, SourceWrong):
                raise
            return file.checksum

    def earlier(
        self,
        uri: str,
        credential: Credential | None,
        worth: Callable[[Sequence[SourceFile]], Sequence[SourceFile]],
        each: Each,
    ) -> Iterator[ResolvedSource]:
        """See VersionedSource. It goes back second by second, as the bucket tells times."""
        bucket = self._resolved(ResolvedSource(uri, "", ()), credential)
        whole = place_of(uri, credential.endpoint if credential else None, self._environ)
        only = basename(whole.prefix) if bucket.place.prefix != whole.prefix else None
        lister = self._lister(bucket, credential)
        try:
            found = list(islice(lister.versions(each, only), _MOST_VERSIONS + 1))
        except SourceError as error:
            if error.retryable:
                raise
            return  # not every server has versions, and not everybody may see them
        if len(found) > _MOST_VERSIONS or all(one.id == "null" for one in found):
            return
        # An object alone is known by its ETag.
        describe = lister.described if only is None else attrgetter("file")
        is_silent = only is None and not any(one.listed and one.listed.algorithms for one in found)
        known: dict[Listed, SourceFile] = {}
        asked: dict[Listed, SourceFile] = {}
        for state in _states(found):
            _describe(describe, (one for one in state if one not in known), known, each)
            versions = {one.file.path: one.version or "null" for one in state}
            files = in_order(known[one] for one in state)
            yield ResolvedSource(uri, "", files, versions=versions)
            likely = {file.path for file in worth(files)} if is_silent else ()
            those = (one for one in state if one.whole and one.file.path in likely)
            more = [one for one in those if one not in asked]
            if likely and len(asked) + len(more) <= _MOST_ASKED:
                _describe(lister.asked, more, asked, each)
                files = in_order(asked.get(one, known[one]) for one in state)
                yield ResolvedSource(uri, "", files, versions=versions)

    def _files(
        self, bucket: Bucket, credential: Credential | None, each: Each
    ) -> Iterator[SourceFile]:
        lister = self._lister(bucket, credential)
        pages = lister.pages(each)
        try:
            first = next(pages, [])
        except SourceError as error:
            if error.retryable or isinstance(error, (Redirected, Unasked)):
                raise
            # The engine knows more of what is wrong: of regions, and of credentials that have ended.
            yield from super()._files(bucket, credential, each)
            return
        place = place_of_checksums(self._environ, lister.server, bucket.place.url)
        with (
            ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="head") as pool,
            closing(Remembered(place)) as told,
        ):
            for page in chain([first], pages):
                known = told.known(one.file for one in page if one.hashed)
                missing = [one for one in page if one.hashed and one.file.path not in known]
                asked = pool.map(lambda one: each(partial(lister.described, one)), missing)
                known_now = known | {file.path: file for file in asked}
                for one in page:
                    file = known_now.get(one.file.path, one.file)
                    told.note(one.file, file, is_news=one.file.path not in known)
                    yield file
            told.keep()

    def _lister(self, bucket: Bucket, credential: Credential | None) -> Lister:
        sent = sent_of(credential)
        access = access_of("s3", sent.value, sent.origin) if sent else None
        return Lister(self._http, bucket.place, access, self._environ)


def _describe(
    describe: Callable[[Listed], SourceFile],
    listed: Iterable[Listed],
    into: dict[Listed, SourceFile],
    each: Each,
) -> None:
    missing = list(listed)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="head") as pool:
        described = pool.map(lambda one: each(partial(describe, one)), missing)
        into.update(zip(missing, described, strict=True))


def _states(versions: Sequence[Version]) -> Iterator[list[Listed]]:
    """What was there before the last change, before the one before it, and so on; changes of one second are one."""
    left: dict[str, list[Version]] = defaultdict(list)
    changed: dict[str, list[str]] = defaultdict(list)
    # The newest of a path come first, which tells more than times, as these are of seconds.
    oldest_first = list(reversed(versions))
    oldest_first.sort(key=attrgetter("modified"))
    for one in oldest_first:
        left[one.path].append(one)
        changed[one.modified].append(one.path)
    for time in sorted(changed, reverse=True):
        for path in changed[time]:
            left[path].pop()
        newest = (each[-1].listed for each in left.values() if each)
        state = [listed for listed in newest if listed is not None]
        if state:
            yield state


_: tuple[type[VersionedSource], type[PagedSource], type[TellingSource]] = (S3Source,) * 3

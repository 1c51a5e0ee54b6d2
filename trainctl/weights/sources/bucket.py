"""Sources in buckets: what lies in one directory of a bucket, or one object."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from posixpath import basename, dirname

from trainctl.base.listing import ResolvedSource, SourceFile, in_order
from trainctl.base.retry import Each, just_once
from trainctl.base.safe_path import shown
from trainctl.errors import SourceError, SourceGone
from trainctl.objects.access import access_of
from trainctl.objects.client import SILENCE_SECONDS, server_of
from trainctl.objects.opening import opened
from trainctl.objects.place import Place, place_of
from trainctl.objects.store import Bucket, Found
from trainctl.spi.sources import Credential, Fill, Span
from trainctl.weights.sources.bodies import asked_for, part, rest
from trainctl.weights.sources.http import HttpClient, Response
from trainctl.weights.sources.validators import refuse_replaced

LINK_SECONDS = 3600
"""How long a link works."""
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')


class BucketSource:
    """Reads buckets through ``trainctl.objects``. ``silence`` is the longest wait for a byte, in seconds."""

    def __init__(
        self, silence: float = SILENCE_SECONDS, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._silence = silence
        self._environ = environ
        self._lock = threading.Lock()
        self._open: dict[tuple[str, Credential | None], Bucket] = {}
        self._http = HttpClient(silence)

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        """Everything in the directory that the URI names, or the object of exactly that name; no revision of its own."""
        return self.resolve_by(uri, revision, credential, just_once)

    def resolve_by(
        self, uri: str, revision: str | None, credential: Credential | None, each: Each
    ) -> ResolvedSource:
        """See PagedSource."""
        bucket = self._bucket(_place(uri, credential, self._environ), credential)
        files = in_order(self._files(bucket, credential, each))
        if not files and (alone := each(partial(self._alone, uri, credential))):
            bucket, files = alone[0], (self._file(*alone, credential, each),)
        if not files:
            raise SourceGone(
                f"{uri}: nothing lies there", "Check its name, and which bucket it is in."
            )
        with self._lock:
            self._open[uri, credential] = bucket
        return ResolvedSource(uri, "", files)

    def server(self, uri: str, credential: Credential | None) -> str | None:
        """What the manifest, the environment or the credential names."""
        place, sent = _place(uri, credential, self._environ), sent_of(credential)
        return server_of(place, access_of(place.scheme, sent.value, sent.origin) if sent else None)

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        """A URL that is signed for an hour; of a bucket that is open to all, the object's own."""
        bucket = self._resolved(resolved, credential)
        if not sent_of(credential):
            return bucket.address(file.path)
        return bucket.sign(file.path, LINK_SECONDS)

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        """An access key signs for every name, and without one there is nothing to sign."""
        return False

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        """The object's bytes, if it still has the ETag that it was resolved by."""
        with ExitStack() as stack:
            response = self._answer(stack, resolved, file, asked_for(offset), credential)
            if response is not None:
                yield rest(response, _named(resolved, file), file, offset)
            else:
                bucket, version = self._resolved(resolved, credential), resolved.versions or {}
                pieces = bucket.open(
                    file.path,
                    offset,
                    size=file.size,
                    etag=_etag(file),
                    version=version.get(file.path),
                )
                yield stack.enter_context(pieces)

    @contextmanager
    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> Iterator[Fill | None]:
        """See PartSource."""
        with ExitStack() as stack:
            ranged = asked_for(*span)
            response = self._answer(stack, resolved, file, ranged, credential)
            what = _named(resolved, file)
            yield part(response, what, file, span) if response else None

    def _answer(
        self,
        stack: ExitStack,
        resolved: ResolvedSource,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: Credential | None,
    ) -> Response | None:
        """The answer to a link, which costs a third of the engine's; None where there is no link, or it is refused.

        The engine knows more of why: of regions, and of credentials that have ended.
        """
        if self.relays(file, credential):
            return None
        url = self.link(resolved, file, credential)
        if url is None:
            return None
        tag = _etag(file)
        headers = {"User-Agent": "trainctl", **ranged, **({"If-Match": tag} if tag else {})}
        what = _named(resolved, file)
        try:
            response = stack.enter_context(self._http.get(url, what, headers))
        except SourceError as error:
            if error.retryable:
                raise
            return None
        refuse_replaced(response.headers, what, file)
        return response

    def _files(
        self, bucket: Bucket, credential: Credential | None, each: Each
    ) -> Iterable[SourceFile]:
        """What lies in the bucket's directory, without what only marks directories. The engine's listing begins anew where it breaks off."""
        return each(lambda: in_order(self._listed(bucket)))

    def _file(
        self, bucket: Bucket, found: Found, credential: Credential | None, each: Each
    ) -> SourceFile:
        """An object alone."""
        return _described(bucket, found)

    def _listed(self, bucket: Bucket) -> Iterator[SourceFile]:
        for one in bucket.list():
            if one.size or not is_marker(bucket, one.key):
                yield _described(bucket, one)

    def _bucket(self, place: Place, credential: Credential | None) -> Bucket:
        return opened(place, credential, self._environ, self._silence)

    def _resolved(self, resolved: ResolvedSource, credential: Credential | None) -> Bucket:
        """The bucket below which the files' paths are keys; found out again where another process resolved them."""
        key = (resolved.source, credential)
        with self._lock:
            known = self._open.get(key)
        if known is not None:
            return known
        bucket = self._bucket(_place(resolved.source, credential, self._environ), credential)
        alone = None
        if next(bucket.list(), None) is None:
            alone = self._alone(resolved.source, credential)
        with self._lock:
            return self._open.setdefault(key, alone[0] if alone else bucket)

    def _alone(self, uri: str, credential: Credential | None) -> tuple[Bucket, Found] | None:
        """The object that the URI itself names, and the bucket at its directory."""
        whole = _place(uri, credential, self._environ)
        if not whole.prefix or uri.endswith("/"):
            return None
        bucket = self._bucket(whole.at(dirname(whole.prefix)), credential)
        found = bucket.head(basename(whole.prefix))
        return (bucket, found) if found else None


def is_marker(bucket: Bucket, key: str) -> bool:
    """Whether an empty object only marks a directory: its true name ends in ``/``, so that there is none of this, or others lie in it."""
    return bucket.head(key) is None or next(bucket.list(key), None) is not None


def tag_told(place: Place, tag: str) -> str:
    """The checksum that an ETag of S3 and R2 is, of an object that was put at once; of one that was put in parts there may be another.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html tells which are MD5s. Those of directory buckets never are.
    """
    if place.scheme not in ("s3", "r2"):
        return ""
    found = _MD5_TAG.fullmatch(tag)
    if found is None or place.bucket.endswith("--x-s3"):
        return "crc:" if is_of_parts(tag) else ""
    return f"md5:{found[1]}"


def is_of_parts(tag: str) -> bool:
    """Whether an ETag of S3 and R2 is that of an object that was put in parts: it ends in their number."""
    return "-" in tag


def _place(uri: str, credential: Credential | None, environ: Mapping[str, str]) -> Place:
    return place_of(uri, credential.endpoint if credential else None, environ)


def sent_of(credential: Credential | None) -> Credential | None:
    """The credential, if it is one that requests are signed with."""
    return credential if credential is not None and credential.value else None


def _named(resolved: ResolvedSource, file: SourceFile) -> str:
    return f"{resolved.source}: {shown(file.path)}"


def _etag(file: SourceFile) -> str | None:
    kind, _, tag = file.validator.partition(":")
    return tag if kind == "etag" else None


def _described(bucket: Bucket, one: Found) -> SourceFile:
    if one.etag:
        checksum = tag_told(bucket.place, one.etag)
        return SourceFile(one.key, one.size, f"etag:{one.etag}", checksum)
    return SourceFile(one.key, one.size, f"modified:{one.modified:%Y-%m-%dT%H:%M:%SZ}")

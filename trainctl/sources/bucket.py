"""Sources in buckets: all objects in one directory of a bucket, or one object."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from posixpath import basename, dirname
from typing import Literal

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile, sort_files
from trainctl.errors import SourceError, SourceMismatch, SourceNotFound
from trainctl.objects.bucket_client import SIGNING, Bucket, ObjectInfo, open_bucket
from trainctl.objects.credentials import parse_credential
from trainctl.objects.location import BucketLocation, parse_bucket_location
from trainctl.objects.obstore_client import SILENCE_SECONDS, custom_endpoint
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import SourceClient, SourceResponse
from trainctl.sources.ranges import range_header, read_from, read_range
from trainctl.sources.validators import check_not_replaced, has_no_md5_etag

URL_SECONDS = 3600
"""How long a presigned URL works."""
_TAGGED = ("s3", "r2")
"""Where ETags are MD5s."""
_GOOGLE_MD5 = re.compile(r"(?:^|,)\s*md5=([A-Za-z0-9+/=]+)")
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')


class BucketSource:
    """Reads buckets through ``trainctl.objects``. ``read_timeout`` is the longest wait for a byte, in seconds."""

    def __init__(
        self,
        scheme: str = "s3",
        *,
        read_timeout: float = SILENCE_SECONDS,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._scheme = scheme
        self._read_timeout = read_timeout
        self._environ = environ
        self._lock = threading.Lock()
        self._open: dict[tuple[str, SourceCredential | None], Bucket] = {}
        self._http = SourceClient(read_timeout)

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """All objects in the directory that the URI names, or the object of exactly that name."""
        bucket = self._bucket(_location(uri, credential, self._environ), credential)
        files = sort_files(_list_files(bucket))
        if not files and (alone := self._alone(uri, credential)):
            bucket, files = alone[0], (_source_file(*alone),)
        if not files:
            raise SourceNotFound(
                f"no objects found under {uri}", "Check the prefix and the bucket."
            )
        with self._lock:
            self._open[uri, credential] = bucket
        return ResolvedSource(uri, "", files)

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """The endpoint that the manifest, the environment or the credential names."""
        place, sent = _location(uri, credential, self._environ), _signing_credential(credential)
        return custom_endpoint(
            place, parse_credential(place.scheme, sent.value, sent.origin) if sent else None
        )

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """A URL presigned for an hour; in a public bucket, the object's own; None if the credential can't sign."""
        return self._signed(resolved, file, credential, "GET")

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """Whether the credential can't sign URLs: tokens and shared signatures can't."""
        sent = _signing_credential(credential)
        return sent is not None and not isinstance(
            parse_credential(self._scheme, sent.value, sent.origin), SIGNING
        )

    def stat(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str:
        """The file's MD5 as its server reports it; nothing if S3 encrypts it with a key of the user's: then its ETag is none."""
        url = self._signed(resolved, file, credential, "HEAD") if file.checksum else None
        if url is None:
            return file.checksum
        what = _file_label(resolved, file)
        try:
            with self._http.get(url, what, {"User-Agent": "trainctl"}, method="HEAD") as response:
                check_not_replaced(response.headers, what, file)
                if has_no_md5_etag(response.headers):
                    return ""
                return file.checksum if self._scheme in _TAGGED else _md5_of(response.headers)
        except SourceError as error:
            if error.retryable or isinstance(error, SourceMismatch):
                raise
            return file.checksum

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """The object's bytes, if it still has the ETag that it was resolved by."""
        with ExitStack() as stack:
            response = self._answer(stack, resolved, file, range_header(offset), credential)
            if response is not None:
                what = _file_label(resolved, file)
                pieces = read_from(response, what, file, offset)
                yield _verify_md5(pieces, response, what) if offset == 0 else pieces
            else:
                bucket = self._resolved(resolved, credential)
                body = bucket.open(file.path, offset, size=file.size, etag=_etag(file))
                yield stack.enter_context(body)

    @contextmanager
    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> Iterator[Fill | None]:
        """Fill with those bytes of the object; None if there is no presigned URL for it."""
        with ExitStack() as stack:
            ranged = range_header(*span)
            response = self._answer(stack, resolved, file, ranged, credential)
            yield (
                read_range(response, _file_label(resolved, file), file, span) if response else None
            )

    def _answer(
        self,
        stack: ExitStack,
        resolved: ResolvedSource,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: SourceCredential | None,
    ) -> SourceResponse | None:
        """The response by presigned URL, for a third of obstore's processor time; None if there is none or it is refused.

        obstore then reports the reason: it knows about regions and expired credentials.
        """
        url = self.presigned_url(resolved, file, credential)
        if url is None:
            return None
        tag = _etag(file)
        headers = {"User-Agent": "trainctl", **ranged, **({"If-Match": tag} if tag else {})}
        what = _file_label(resolved, file)
        try:
            response = stack.enter_context(self._http.get(url, what, headers))
        except SourceError as error:
            if error.retryable:
                raise
            return None
        check_not_replaced(response.headers, what, file)
        return response

    def _signed(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        credential: SourceCredential | None,
        method: Literal["GET", "HEAD"],
    ) -> str | None:
        bucket = self._resolved(resolved, credential)
        if not _signing_credential(credential):
            return bucket.address(file.path)
        return bucket.sign(file.path, URL_SECONDS, method)

    def _bucket(self, place: BucketLocation, credential: SourceCredential | None) -> Bucket:
        return open_bucket(place, credential, self._environ, self._read_timeout)

    def _resolved(self, resolved: ResolvedSource, credential: SourceCredential | None) -> Bucket:
        """The bucket below which the files' paths are keys; looked up again if another process resolved them."""
        key = (resolved.source, credential)
        with self._lock:
            known = self._open.get(key)
        if known is not None:
            return known
        bucket = self._bucket(_location(resolved.source, credential, self._environ), credential)
        alone = None
        if next(bucket.list(), None) is None:
            alone = self._alone(resolved.source, credential)
        with self._lock:
            return self._open.setdefault(key, alone[0] if alone else bucket)

    def _alone(
        self, uri: str, credential: SourceCredential | None
    ) -> tuple[Bucket, ObjectInfo] | None:
        """The object that the URI itself names, and the bucket at its directory."""
        place = _location(uri, credential, self._environ)
        if not place.prefix or uri.endswith("/"):
            return None
        bucket = self._bucket(replace(place, prefix=dirname(place.prefix)), credential)
        found = bucket.head(basename(place.prefix))
        return (bucket, found) if found else None


def _list_files(bucket: Bucket) -> Iterator[SourceFile]:
    for found in bucket.list():
        if found.size or not _is_directory_marker(bucket, found.key):
            yield _source_file(bucket, found)


def _is_directory_marker(bucket: Bucket, key: str) -> bool:
    """Whether an empty object only marks a directory: its real name ends in ``/``, or other objects are below it."""
    return bucket.head(key) is None or next(bucket.list(key), None) is not None


def _source_file(bucket: Bucket, found: ObjectInfo) -> SourceFile:
    if found.etag:
        checksum = _checksum(bucket.place, found.etag, found.size)
        return SourceFile(found.key, found.size, f"etag:{found.etag}", checksum)
    return SourceFile(found.key, found.size, f"modified:{found.modified:%Y-%m-%dT%H:%M:%SZ}")


def _checksum(place: BucketLocation, tag: str, size: int) -> str:
    """The MD5 that an ETag of S3 and R2 is, unless the object was uploaded in parts; in directory buckets it never is.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html. Elsewhere large objects' MD5 is worth a request.
    """
    if place.scheme not in _TAGGED:
        return "md5:" if size >= CHUNK_BYTES else ""
    found = None if place.bucket.endswith("--x-s3") else _MD5_TAG.fullmatch(tag)
    return f"md5:{found[1]}" if found else ""


def _md5_of(headers: Mapping[str, str]) -> str:
    """The MD5 of a complete object, as Azure and Google report it; empty if they don't."""
    found = _GOOGLE_MD5.search(headers.get("x-goog-hash") or "")
    text = found[1] if found else headers.get("Content-MD5") or ""
    try:
        digest = b64decode(text, validate=True)
    except ValueError:
        return ""
    return f"md5:{digest.hex()}" if len(digest) == 16 else ""


def _verify_md5(pieces: Iterator[bytes], response: SourceResponse, what: str) -> Iterator[bytes]:
    """SourceMismatch at the end of a complete body that has another MD5 than the response reports."""
    expected = _md5_of(response.headers) if response.status == 200 else ""
    if not expected:
        yield from pieces
        return
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
        yield piece
    if f"md5:{digest.hexdigest()}" != expected:
        raise SourceMismatch(
            f"checksum mismatch of {what}: expected MD5 {expected[4:]}, got {digest.hexdigest()}",
            "The data was corrupted in transit or upstream. Apply again.",
        )


def _location(
    uri: str, credential: SourceCredential | None, environ: Mapping[str, str]
) -> BucketLocation:
    return parse_bucket_location(uri, credential.endpoint if credential else None, environ)


def _signing_credential(credential: SourceCredential | None) -> SourceCredential | None:
    """The credential, if requests are signed with it."""
    return credential if credential is not None and credential.value else None


def _file_label(resolved: ResolvedSource, file: SourceFile) -> str:
    return f"{resolved.source}: {display_path(file.path)}"


def _etag(file: SourceFile) -> str | None:
    kind, _, tag = file.validator.partition(":")
    return tag if kind == "etag" else None

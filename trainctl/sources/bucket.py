"""Sources in buckets: all objects below a prefix, or one object."""

from __future__ import annotations

import hashlib
import os
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from posixpath import basename, dirname
from typing import Literal

from trainctl.base.filesystem.safe_path import ARCHIVED, display_path, unusable_file
from trainctl.base.http import HttpClient
from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile, sort_files
from trainctl.buckets.bucket import SIGNING, Bucket
from trainctl.buckets.credentials import parse_credential
from trainctl.buckets.location import BucketLocation, parse_bucket_location
from trainctl.buckets.metadata import CHECKSUM_MODE, ObjectInfo
from trainctl.buckets.obstore_client import SILENCE_SECONDS, BucketSettings
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, SourceNotFound
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import (
    SourceClient,
    SourceResponse,
    check_not_replaced,
    download_headers,
    has_no_md5_etag,
    range_header,
    read_from,
    read_range,
)

URL_SECONDS = 3600
"""Validity of presigned URLs."""
_TAGGED = ("s3", "r2")
"""Schemes whose ETags are MD5s."""
_GOOGLE_MD5 = compile_lazily(r"(?:^|,)\s*md5=([A-Za-z0-9+/=]+)")
_MD5_TAG = compile_lazily(r'"?([0-9a-f]{32})"?')


class BucketSource:
    """A source in a bucket. ``read_timeout``: longest wait for a byte, in seconds."""

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
        self._connections = HttpClient(read_timeout=read_timeout)

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Return all objects below the URI's prefix, or the one object of that name."""
        bucket, listed = self._find(uri, credential)
        infos = list(listed)
        parents: set[str] = set()
        for info in infos:
            key = info.key
            while (key := dirname(key)) and key not in parents:
                parents.add(key)
        found = (info for info in infos if info.size or info.key not in parents)
        files = sort_files(_source_file(bucket.location, info) for info in found)
        if not files:
            raise SourceNotFound(
                f"no objects found under {uri}", "Check the prefix and the bucket."
            )
        with self._lock:
            self._open[uri, credential] = bucket
        return ResolvedSource(uri, "", files)

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """Return the endpoint of manifest, environment or credential, if not the default."""
        location = _location(uri, credential, self._environ)
        sent = _signing_credential(credential)
        access = parse_credential(location.scheme, sent.value, sent.origin) if sent else None
        settings = BucketSettings(location, access, self._environ, self._read_timeout)
        return settings.custom_endpoint

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return a presigned or public URL; None if the credential can't sign."""
        return self._signed(resolved, file, credential, "GET")

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """Return whether URLs can't be signed: for tokens, shared signatures and a project to bill."""
        sent = _signing_credential(credential)
        if sent is None or (self._scheme == "gs" and sent.requester_pays):
            return sent is not None
        return not isinstance(parse_credential(self._scheme, sent.value, sent.origin), SIGNING)

    def stat(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str:
        """Return a checksum of the file from its server, the cheapest to compute, or ``""``."""
        url = self._signed(resolved, file, credential, "HEAD") if file.checksum else None
        if url is None:
            return file.checksum
        subject = _file_label(resolved, file)
        headers = download_headers(resolved.source)
        headers |= CHECKSUM_MODE if self._scheme in _TAGGED else {}
        try:
            with self._http.get(url, subject, headers, method="HEAD") as response:
                check_not_replaced(response.headers, subject, file)
                if has_no_md5_etag(response.headers):
                    return ""
                if checksum := _checksum_of(response.headers):
                    return checksum
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
        """Open an object that still has its ETag."""
        with ExitStack() as stack:
            response = self._get(stack, resolved, file, range_header(offset), credential)
            if response is not None:
                subject = _file_label(resolved, file)
                body = read_from(response, subject, file, offset)
                yield _verify_md5(body, response, subject) if offset == 0 else body
            else:
                bucket = self._resolved(resolved, credential)
                opened = bucket.open(file.path, offset, size=file.size, etag=_etag(file))
                yield stack.enter_context(opened)

    @contextmanager
    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> Iterator[Fill | None]:
        """Open a range of an object; None without a presigned URL."""
        with ExitStack() as stack:
            ranged = range_header(*span)
            response = self._get(stack, resolved, file, ranged, credential)
            yield (
                read_range(response, _file_label(resolved, file), file, span) if response else None
            )

    def _get(
        self,
        stack: ExitStack,
        resolved: ResolvedSource,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: SourceCredential | None,
    ) -> SourceResponse | None:
        """Request a presigned URL, cheaper than obstore; None if refused.

        Then use obstore, which handles regions and expired credentials.
        """
        url = self.presigned_url(resolved, file, credential)
        if url is None:
            return None
        tag = _etag(file)
        headers = {**download_headers(resolved.source), **ranged}
        headers |= {"If-Match": tag} if tag else {}
        subject = _file_label(resolved, file)
        try:
            response = stack.enter_context(self._http.get(url, subject, headers))
        except SourceError as error:
            if error.retryable:
                raise
            return None
        check_not_replaced(response.headers, subject, file)
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

    def _resolved(self, resolved: ResolvedSource, credential: SourceCredential | None) -> Bucket:
        """Return the bucket in which the files' paths are keys."""
        key = (resolved.source, credential)
        with self._lock:
            known = self._open.get(key)
        if known is not None:
            return known
        bucket, _ = self._find(resolved.source, credential)
        with self._lock:
            return self._open.setdefault(key, bucket)

    def _find(
        self, uri: str, credential: SourceCredential | None
    ) -> tuple[Bucket, Iterator[ObjectInfo]]:
        """Return the bucket at the prefix and its objects, else at the parent and the single object.

        The latter needs no permission to list.
        """
        location = _location(uri, credential, self._environ)
        bucket = Bucket(location, credential, self._environ, self._read_timeout, self._connections)
        listed = bucket.list()
        denied, first = None, None
        try:
            first = next(listed, None)
        except SourceDenied as error:
            denied = error
        path = bucket.location.prefix
        if first is None and path and not uri.endswith("/"):
            parent = bucket.at(dirname(path))
            with suppress(*([SourceDenied] if denied else [])):
                if (single := parent.stat(basename(path))) and not single.is_directory:
                    return parent, iter([single])
        if denied:
            raise denied
        return bucket, chain([first] if first else [], listed)


def _source_file(location: BucketLocation, info: ObjectInfo) -> SourceFile:
    """Return an object as a file, with the MD5 in an ETag of S3 and R2; multipart uploads have none there.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html. Elsewhere it is requested for large objects.
    """
    if info.archived:
        return unusable_file(info.key, f"{ARCHIVED} ({info.archived})")
    if not info.etag:
        modified = datetime.fromtimestamp(info.modified, UTC)
        return SourceFile(info.key, info.size, f"modified:{modified:%Y-%m-%dT%H:%M:%SZ}")
    if location.scheme in _TAGGED:
        match = None if location.bucket.endswith("--x-s3") else _MD5_TAG.fullmatch(info.etag)
        checksum = f"md5:{match[1]}" if match else ""
    else:
        checksum = "md5:" if info.size >= CHUNK_BYTES else ""
    return SourceFile(info.key, info.size, f"etag:{info.etag}", checksum)


def _checksum_of(headers: Mapping[str, str]) -> str:
    """Return the SHA-256 or CRC-32 of a complete object, as S3 reports it, or ``""``.

    Composite checksums, of the checksums of an upload's parts, are left out; their values end with the number of parts.
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
    """
    if headers.get("x-amz-checksum-type") == "COMPOSITE":
        return ""
    for kind, length in (("sha256", 32), ("crc32", 4)):
        digest = _decode_base64(headers.get(f"x-amz-checksum-{kind}") or "")
        if len(digest) == length:
            return f"{kind}:{digest.hex()}"
    return ""


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""


def _md5_of(headers: Mapping[str, str]) -> str:
    """Return the MD5 of a complete object, as Azure and Google report it, or ``""``."""
    match = _GOOGLE_MD5.search(headers.get("x-goog-hash") or "")
    text = match[1] if match else headers.get("Content-MD5") or ""
    digest = _decode_base64(text)
    return f"md5:{digest.hex()}" if len(digest) == 16 else ""


def _verify_md5(body: Iterator[bytes], response: SourceResponse, subject: str) -> Iterator[bytes]:
    """Yield a complete body; SourceMismatch if its MD5 differs."""
    expected = _md5_of(response.headers) if response.status == 200 else ""
    if not expected:
        yield from body
        return
    digest = hashlib.md5(usedforsecurity=False)
    for data in body:
        digest.update(data)
        yield data
    if f"md5:{digest.hexdigest()}" != expected:
        raise SourceMismatch(
            f"checksum mismatch of {subject}: expected MD5 {expected[4:]}, got {digest.hexdigest()}",
            "The data was corrupted in transit or upstream. Apply again.",
        )


def _location(
    uri: str, credential: SourceCredential | None, environ: Mapping[str, str]
) -> BucketLocation:
    location = parse_bucket_location(uri, credential.endpoint if credential else None, environ)
    return replace(location, requester_pays=bool(credential and credential.requester_pays))


def _signing_credential(credential: SourceCredential | None) -> SourceCredential | None:
    """Return the credential if requests are signed with it."""
    return credential if credential is not None and credential.value else None


def _file_label(resolved: ResolvedSource, file: SourceFile) -> str:
    return f"{resolved.source}: {display_path(file.path)}"


def _etag(file: SourceFile) -> str | None:
    kind, _, tag = file.validator.partition(":")
    return tag if kind == "etag" else None

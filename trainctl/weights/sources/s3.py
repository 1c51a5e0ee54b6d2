"""``s3:`` sources: a bucket whose listing tells which objects have a sha256, and true names.

The engine's listing tells neither. Source of the forms: ListObjectsV2 and HeadObject of the Amazon S3 API Reference.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from urllib.parse import urlsplit
from xml.etree import ElementTree

from trainctl.errors import SourceError
from trainctl.model.files import SourceFile
from trainctl.node.checkpoints import sigv4
from trainctl.objects.access import AwsKeys, access_of
from trainctl.objects.client import endpoint_of, region_of
from trainctl.objects.store import Bucket
from trainctl.spi.sources import Credential
from trainctl.weights.sources.bucket import BucketSource, sent_of
from trainctl.weights.sources.http import HttpClient, Response

_LARGEST_PAGE = 16 * 2**20
_AT_ONCE = 8
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class S3Source(BucketSource):
    """A bucket whose content is known by its sha256 where S3 has it, and by its ETag otherwise."""

    def _files(self, bucket: Bucket, credential: Credential | None) -> Iterator[SourceFile]:
        lister = _Lister(self._http, bucket, credential, self._environ)
        pages = lister.pages()
        try:
            first = next(pages, [])
        except SourceError as error:
            if error.retryable:
                raise
            # The engine knows more of what is wrong: of regions, and of credentials that have ended.
            yield from super()._files(bucket, credential)
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="head") as pool:
            for page in chain([first], pages):
                yield from pool.map(lister.described, page)


@dataclass(frozen=True)
class _Listed:
    file: SourceFile
    hashed: bool


class _Lister:
    """Requests of S3's own, signed here."""

    def __init__(
        self,
        http: HttpClient,
        bucket: Bucket,
        credential: Credential | None,
        environ: Mapping[str, str],
    ) -> None:
        self._http = http
        self._place = bucket.place
        sent = sent_of(credential)
        access = access_of("s3", sent.value, sent.origin) if sent else None
        self._keys = access if isinstance(access, AwsKeys) else None
        self._region = region_of(bucket.place, access, environ)
        self._endpoint = urlsplit(endpoint_of(bucket.place, access, environ))
        self._prefix = f"{bucket.place.prefix}/" if bucket.place.prefix else ""

    def pages(self) -> Iterator[list[_Listed]]:
        """What lies in the directory, without keys that end in ``/``: these mark directories."""
        token = ""
        while True:
            query = [("list-type", "2"), ("prefix", self._prefix)]
            page = self._page([*query, ("continuation-token", token)] if token else query)
            yield [
                self._listed(one)
                for one in page.iterfind("{*}Contents")
                if not _text(one, "Key").endswith("/")
            ]
            token = _text(page, "NextContinuationToken")
            if not token:
                return

    def described(self, listed: _Listed) -> SourceFile:
        """The file with its sha256, if S3 has that of the whole object; asked only where the listing says that there is one."""
        if not listed.hashed:
            return listed.file
        path = f"/{self._place.bucket}/{self._prefix}{listed.file.path}"
        target = sigv4.Target("HEAD", self._endpoint.netloc, self._endpoint.path + path)
        try:
            with self._ask(target, {"x-amz-checksum-mode": "ENABLED"}) as response:
                found = _sha256(response.headers.get("x-amz-checksum-sha256") or "")
        except SourceError as error:
            if error.retryable:
                raise
            found = None
        return replace(listed.file, validator=f"sha256:{found}") if found else listed.file

    def _listed(self, one: ElementTree.Element) -> _Listed:
        key, size, etag = (_text(one, name) for name in ("Key", "Size", "ETag"))
        if not (key.startswith(self._prefix) and size.isdecimal() and etag):
            raise self._senseless()
        tag = etag if etag.endswith('"') else f'"{etag}"'
        file = SourceFile(key[len(self._prefix) :], int(size), f"etag:{tag}")
        # Of an object that was put in parts, whose ETag ends in their number, there is only a digest of digests.
        whole = _text(one, "ChecksumType") in ("", "FULL_OBJECT") and "-" not in tag
        return _Listed(file, whole and _text(one, "ChecksumAlgorithm") == "SHA256")

    def _page(self, query: sigv4.Query) -> ElementTree.Element:
        path = f"{self._endpoint.path}/{self._place.bucket}"
        target = sigv4.Target("GET", self._endpoint.netloc, path, query)
        with self._ask(target, {}) as response:
            body = response.read(_LARGEST_PAGE)
        try:
            if b"<!DOCTYPE" in body:  # S3 sends none, and only one could make a small body grow
                raise self._senseless()
            return ElementTree.fromstring(body)  # noqa: S314
        except ElementTree.ParseError:
            raise self._senseless() from None

    def _ask(
        self, target: sigv4.Target, more: Mapping[str, str]
    ) -> AbstractContextManager[Response]:
        query = sigv4.quoted_query(target.query)
        path = sigv4.quoted_path(target.path) + (f"?{query}" if query else "")
        headers = {"User-Agent": "trainctl", **more}
        if self._keys is not None:
            key = sigv4.Credential(self._keys.key_id, self._keys.secret, self._keys.session)
            signed = sigv4.headers(target, key, self._region, _EMPTY_SHA256, time.time(), more)
            headers.update(signed)
        url = f"{self._endpoint.scheme}://{target.host}{path}"
        return self._http.get(url, self._place.url, headers, method=target.method)

    def _senseless(self) -> SourceError:
        return SourceError(f"{self._place.url}: its server's list of objects makes no sense")


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _sha256(told: str) -> str | None:
    """The hex digest that a header tells in base64; None for that of an object's parts, which has their number behind it."""
    try:
        digest = base64.b64decode(told, validate=True)
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if len(digest) == hashlib.sha256().digest_size else None

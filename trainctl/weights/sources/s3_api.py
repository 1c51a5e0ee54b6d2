"""Requests of S3's own, which tell what the engine's listing doesn't: true names, digests, and what was there before.

Source of the forms: ListObjectsV2, ListObjectVersions and HeadObject of the Amazon S3 API Reference.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote_plus, urlsplit
from xml.etree import ElementTree

from trainctl.base import sigv4
from trainctl.base.listing import SourceFile
from trainctl.base.retry import Each, just_once
from trainctl.base.safe_path import shown
from trainctl.errors import SourceError
from trainctl.objects.access import Access, AwsKeys
from trainctl.objects.client import endpoint_of, region_of
from trainctl.objects.place import Place
from trainctl.objects.store import Found
from trainctl.weights.sources.bucket import is_of_parts, tag_told
from trainctl.weights.sources.http import HttpClient, Response
from trainctl.weights.sources.paging import below, pages_of
from trainctl.weights.sources.told import size_of, tag_of, xml_of
from trainctl.weights.sources.validators import digest_told, no_md5, refuse_replaced
from trainctl.weights.sources.wire import Headers

_LARGEST_PAGE = 16 * 2**20
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_TELLING = {"x-amz-checksum-mode": "ENABLED"}
_CRCS = ("crc64nvme", "crc32c", "crc32")
_COUNT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True)
class Listed:
    """A file as a listing tells it, with the algorithms that there are checksums by: of the ``whole`` file, or of its parts. ``version`` is one of many."""

    file: SourceFile
    whole: bool
    algorithms: frozenset[str] = frozenset()
    version: str | None = None

    @property
    def hashed(self) -> bool:
        """Whether there is a sha256 of it, which a request of its own tells."""
        return self.whole and "SHA256" in self.algorithms


class Version(NamedTuple):
    """What once was at a path from that time on, which the bucket tells as text that sorts; nothing, where it was deleted."""

    path: str
    modified: str
    id: str
    listed: Listed | None


class Lister:
    """Requests of S3's own, signed here."""

    def __init__(
        self, http: HttpClient, place: Place, access: Access | None, environ: Mapping[str, str]
    ) -> None:
        self._http = http
        self._place = place
        keys = access if isinstance(access, AwsKeys) else None
        self._key = sigv4.Credential(keys.key_id, keys.secret, keys.session) if keys else None
        self._region = region_of(place, access, environ)
        self._endpoint = urlsplit(endpoint_of(place, access, environ))
        self._prefix = f"{place.prefix}/" if place.prefix else ""

    @property
    def server(self) -> str:
        """Who is asked."""
        return f"{self._endpoint.scheme}://{self._endpoint.netloc}"

    def pages(self, each: Each) -> Iterator[list[Listed]]:
        """What lies in the directory, without keys that end in ``/``: these mark directories."""
        for page in self._asked([("list-type", "2"), ("prefix", self._prefix)], each):
            yield [
                self._listed(one)
                for one in page.iterfind("{*}Contents")
                if not _text(one, "Key").endswith("/")
            ]

    def found(self, prefix: str, after: str = "") -> Iterator[Found]:
        """See ``Bucket.list``: whatever the names are."""
        start = f"{prefix}/" if prefix else ""
        whole = self._prefix + start
        query = [("list-type", "2"), ("prefix", whole), ("encoding-type", "url")]
        if after:
            query.append(("start-after", self._prefix + after))
        for page in self._asked(query, just_once):
            # There are servers that don't know of that.
            plain = unquote_plus if _text(page, "EncodingType") == "url" else str
            for one in page.iterfind("{*}Contents"):
                try:
                    size, when = size_of(_text(one, "Size")), _text(one, "LastModified")
                    modified = datetime.fromisoformat(when)
                except ValueError:
                    raise self._senseless() from None
                path = below(whole, plain(_text(one, "Key")), self._place.url)
                yield Found(start + path, size, None, None, modified)

    def versions(self, each: Each, only: str | None = None) -> Iterator[Version]:
        """What ever lay in the directory, or under that name in it: by path, and the newest first of each."""
        query = [("versions", ""), ("prefix", self._prefix + (only or ""))]

        def ask(after: sigv4.Query | None) -> tuple[ElementTree.Element, sigv4.Query | None]:
            page = each(partial(self._page, [*query, *(after or ())]))
            if _text(page, "IsTruncated") != "true":
                return page, None
            return page, [
                ("key-marker", _text(page, "NextKeyMarker")),
                ("version-id-marker", _text(page, "NextVersionIdMarker")),
            ]

        for page in pages_of(self._place.url, ask):
            for one in page:
                kind, key = one.tag.rpartition("}")[2], _text(one, "Key")
                if kind not in ("Version", "DeleteMarker") or key.endswith("/"):
                    continue
                listed = self._listed(one) if kind == "Version" else None
                path = below(self._prefix, key, self._place.url)
                if only in (None, path):
                    yield Version(path, _text(one, "LastModified"), _text(one, "VersionId"), listed)

    def link(self, path: str, version: str, seconds: int) -> str:
        """A URL by which anybody may read that version of a file for so many seconds."""
        target = self._target("GET", path, version)
        query = sigv4.quoted_query(target.query)
        if self._key is not None:
            query = sigv4.presigned_query(target, self._key, self._region, seconds, time.time())
        return f"{self._endpoint.scheme}://{target.host}{sigv4.quoted_path(target.path)}?{query}"

    def described(self, listed: Listed) -> SourceFile:
        """The file with its sha256, if S3 has that of the whole object; asked only where the listing says that there is one."""
        return self.asked(listed) if listed.hashed else listed.file

    def asked(self, listed: Listed) -> SourceFile:
        """The same, whatever the listing says."""
        try:
            told = self._head(listed.file.path, listed.version)
            found = _sha256(told.get("x-amz-checksum-sha256") or "")
        except SourceError as error:
            if error.retryable:
                raise
            found = None
        return replace(listed.file, validator=f"sha256:{found}") if found else listed.file

    def told(self, file: SourceFile, version: str | None) -> str:
        """See TellingSource. Errors are raised."""
        headers = self._head(file.path, version)
        refuse_replaced(headers, f"{self._place.url}: {shown(file.path)}", file)
        words = [] if no_md5(headers) else [one for one in _words(file) if one.startswith("md5:")]
        told = {one: headers.get(f"x-amz-checksum-{one}") or "" for one in _CRCS}
        # A checksum of checksums can't be told from one of the content, where parts have one: then S3 says which it is.
        kind = headers.get("x-amz-checksum-type") or ("" if _in_parts(file) else "FULL_OBJECT")
        if kind == "FULL_OBJECT":
            words += [digest_told(*one) for one in told.items()]
        elif kind == "COMPOSITE":
            words += [self._by_parts(file, version, *one) for one in told.items()]
        return " ".join(filter(None, words))

    def _asked(self, query: sigv4.Query, each: Each) -> Iterator[ElementTree.Element]:
        def ask(after: sigv4.Query | None) -> tuple[ElementTree.Element, sigv4.Query | None]:
            page = each(partial(self._page, [*query, *(after or ())]))
            token = _text(page, "NextContinuationToken")
            return page, [("continuation-token", token)] if token else None

        return pages_of(self._place.url, ask)

    def _by_parts(self, file: SourceFile, version: str | None, kind: str, told: str) -> str:
        """The word of a checksum of the parts' checksums; nothing where these don't begin at multiples of one size.

        The first and the last tell, as all of them together are the file: other sizes between them would have to make up for each other.
        """
        value, _, count = told.rpartition("-")
        word = digest_told(kind, value)
        if not (word and _COUNT.fullmatch(count)):
            return ""
        first, last = (self._part_size(file.path, version, one) for one in ("1", count))
        even = 0 < last <= first and first * (int(count) - 1) + last == file.size
        return f"{word}/{first}" if even else ""

    def _part_size(self, path: str, version: str | None, number: str) -> int:
        headers = self._head(path, version, number)
        try:
            return size_of(headers.get("Content-Length"))
        except ValueError:
            return 0

    def _listed(self, one: ElementTree.Element) -> Listed:
        key = _text(one, "Key")
        try:
            size, etag = size_of(_text(one, "Size")), tag_of(_text(one, "ETag"))
        except ValueError:
            raise self._senseless() from None
        tag = etag if etag.endswith('"') else f'"{etag}"'
        kind = _text(one, "ChecksumType")
        algorithms = frozenset(each.text or "" for each in one.iterfind("{*}ChecksumAlgorithm"))
        checksum = _with_crcs(tag_told(self._place, tag), algorithms, kind)
        file = SourceFile(below(self._prefix, key, self._place.url), size, f"etag:{tag}", checksum)
        # Of an object that was put in parts there is no sha256 but one of sha256s.
        whole = kind in ("", "FULL_OBJECT") and not is_of_parts(tag)
        return Listed(file, whole, algorithms, _text(one, "VersionId") or None)

    def _target(self, method: str, path: str, version: str | None, part: str = "") -> sigv4.Target:
        whole = f"{self._endpoint.path}/{self._place.bucket}/{self._prefix}{path}"
        about = (("partNumber", part), ("versionId", version))
        query = [(name, value) for name, value in about if value]
        return sigv4.Target(method, self._endpoint.netloc, whole, query)

    def _head(self, path: str, version: str | None, part: str = "") -> Headers:
        with self._ask(self._target("HEAD", path, version, part), _TELLING) as response:
            return response.headers

    def _page(self, query: sigv4.Query) -> ElementTree.Element:
        path = f"{self._endpoint.path}/{self._place.bucket}"
        target = sigv4.Target("GET", self._endpoint.netloc, path, query)
        with self._ask(target, {}) as response:
            body = response.read(_LARGEST_PAGE)
        try:
            return xml_of(body)
        except ValueError:
            raise self._senseless() from None

    def _ask(
        self, target: sigv4.Target, more: Mapping[str, str]
    ) -> AbstractContextManager[Response]:
        query = sigv4.quoted_query(target.query)
        path = sigv4.quoted_path(target.path) + (f"?{query}" if query else "")
        headers = {"User-Agent": "trainctl", **more}
        if self._key is not None:
            signed = sigv4.headers(
                target, self._key, self._region, _EMPTY_SHA256, time.time(), more
            )
            headers.update(signed)
        url = f"{self._endpoint.scheme}://{target.host}{path}"
        is_signed = self._key is not None
        return self._http.get(url, self._place.url, headers, method=target.method, signed=is_signed)

    def _senseless(self) -> SourceError:
        return SourceError(f"{self._place.url}: its server's list of objects makes no sense")


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _with_crcs(told: str, algorithms: frozenset[str], kind: str) -> str:
    """What an ETag tells, and by which CRCs more is told where it is asked for."""
    if not algorithms:
        return told
    # Of what was put at once such a type is told by servers that know no other, and nothing by it.
    is_told = kind != "COMPOSITE" or told == "crc:"
    crcs = [f"{one}:" for one in _CRCS if one.upper() in algorithms and is_told]
    return " ".join([*(one for one in told.split() if one != "crc:"), *crcs])


def _words(file: SourceFile) -> list[str]:
    return file.checksum.split()


def _in_parts(file: SourceFile) -> bool:
    return is_of_parts(file.validator)


def _sha256(told: str) -> str | None:
    """The hex digest that a header tells in base64; None for that of an object's parts, which has their number behind it."""
    try:
        digest = base64.b64decode(told, validate=True)
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if len(digest) == hashlib.sha256().digest_size else None

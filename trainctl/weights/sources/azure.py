"""``azure:`` sources: a container's own listing, which tells names that the engine's paths can't hold.

https://learn.microsoft.com/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from functools import partial
from urllib.parse import unquote, urlencode
from xml.etree import ElementTree

from trainctl.base.listing import SourceFile
from trainctl.base.retry import Each
from trainctl.errors import SourceError
from trainctl.objects.access import AzureKey, AzureSas, access_of
from trainctl.objects.client import SILENCE_SECONDS
from trainctl.objects.shared_signature import VERSION, shared_signature
from trainctl.objects.store import Bucket, Found
from trainctl.spi.sources import Credential
from trainctl.weights.sources.bucket import BucketSource, is_marker, sent_of
from trainctl.weights.sources.http import Redirected
from trainctl.weights.sources.paging import Unasked, below, pages_of
from trainctl.weights.sources.tokens import Token, Tokens
from trainctl.weights.sources.told import size_of, tag_of, xml_of
from trainctl.weights.sources.validators import digest_told

_LARGEST_PAGE = 64 * 2**20
_LIST_SECONDS = 3600


class AzureSource(BucketSource):
    """A container. Only its account's key makes links: other credentials can't sign."""

    def __init__(
        self, silence: float = SILENCE_SECONDS, environ: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(silence, environ)
        self._tokens = Tokens("azure", environ)

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        """See WeightSource."""
        sent = sent_of(credential)
        return sent is not None and not isinstance(
            access_of("azure", sent.value, sent.origin), AzureKey
        )

    def _files(
        self, bucket: Bucket, credential: Credential | None, each: Each
    ) -> Iterator[SourceFile]:
        pages = self._pages(bucket, credential, each)
        try:
            first = next(pages, [])
        except SourceError as error:
            if error.retryable or isinstance(error, (Redirected, Unasked)):
                raise
            yield from super()._files(bucket, credential, each)  # it knows more of what is wrong
            return
        for page in (first, *pages):
            for one in page:
                if one.size or not each(partial(_marks, bucket, one.path)):
                    yield one

    def _file(
        self, bucket: Bucket, found: Found, credential: Credential | None, each: Each
    ) -> SourceFile:
        """As the container's listing tells it, which has its MD5."""
        try:
            pages = list(self._pages(bucket, credential, each, found.key))
        except SourceError as error:
            if error.retryable:
                raise
            pages = []
        told = (one for page in pages for one in page if one.path == found.key)
        return next(told, None) or super()._file(bucket, found, credential, each)

    def _pages(
        self, bucket: Bucket, credential: Credential | None, each: Each, only: str = ""
    ) -> Iterator[list[SourceFile]]:
        place, opened = bucket.place, _query(bucket, credential)
        token = self._tokens.of(credential) if credential and opened is None else None
        prefix = f"{place.prefix}/" if place.prefix else ""
        container = bucket.address("").removesuffix(f"/{place.prefix}" if place.prefix else "")
        query = {"restype": "container", "comp": "list", "prefix": prefix + only}

        def ask(marker: str | None) -> tuple[ElementTree.Element, str | None]:
            asked = urlencode({**query, **({"marker": marker} if marker else {})})
            url = f"{container}?{asked}" + (f"&{opened}" if opened else "")
            page = each(partial(self._page, bucket, url, token, signed=bool(opened)))
            return page, page.findtext("NextMarker") or None

        for page in pages_of(place.url, ask):
            names = ((one, _name(one)) for one in page.iterfind("Blobs/Blob"))
            yield [
                _described(bucket, one, below(prefix, name, place.url))
                for one, name in names
                if name[-1:] != "/"
            ]

    def _page(
        self, bucket: Bucket, url: str, token: Token | None, *, signed: bool
    ) -> ElementTree.Element:
        headers = {"User-Agent": "trainctl", "x-ms-version": VERSION}
        if token is None:
            answered = self._http.get(url, bucket.place.url, headers, signed=signed)
        else:
            headers["x-ms-date"] = formatdate(usegmt=True)
            answered = token.get(self._http, url, bucket.place.url, headers)
        with answered as answer:
            body = answer.read(_LARGEST_PAGE)
        try:
            return xml_of(body)
        except ValueError:
            raise _senseless(bucket) from None


def _query(bucket: Bucket, credential: Credential | None) -> str | None:
    """What opens the container's listing by its URL; empty where nothing needs to, None where a token does."""
    sent = sent_of(credential)
    if sent is None:
        return ""
    access = access_of("azure", sent.value, sent.origin)
    if isinstance(access, AzureSas):
        return access.query
    if isinstance(access, AzureKey):
        return shared_signature(access, bucket.place, None, "l", _LIST_SECONDS, time.time())
    return None


def _senseless(bucket: Bucket) -> SourceError:
    return SourceError(f"{bucket.place.url}: its server's list of blobs makes no sense")


def _name(blob: ElementTree.Element) -> str:
    """A blob's name, which is quoted where XML couldn't hold it."""
    name = blob.find("Name")
    if name is None:
        return "/"
    return unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""


def _described(bucket: Bucket, blob: ElementTree.Element, path: str) -> SourceFile:
    tag = (blob.findtext("Properties/Etag") or "").strip('"')
    try:
        size = size_of(blob.findtext("Properties/Content-Length") or "0")
        checksum = digest_told("md5", blob.findtext("Properties/Content-MD5"))
        return SourceFile(path, size, f'etag:"{tag_of(tag)}"', checksum)
    except ValueError:
        raise _senseless(bucket) from None


def _marks(bucket: Bucket, key: str) -> bool:
    """Whether an empty blob only marks a directory. One whose name is none is left for whoever looks at names."""
    try:
        return is_marker(bucket, key)
    except SourceError as error:
        if error.code != "unsafe-file-name":
            raise
        return False

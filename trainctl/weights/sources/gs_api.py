"""The JSON API of Google Cloud Storage: https://cloud.google.com/storage/docs/json_api/v1/objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from trainctl.base.listing import SourceFile
from trainctl.base.retry import Each, just_once
from trainctl.errors import SourceError, SourceGone
from trainctl.objects.place import Place
from trainctl.weights.sources.http import HttpClient, Response
from trainctl.weights.sources.paging import pages_of
from trainctl.weights.sources.tokens import Token
from trainctl.weights.sources.told import json_of

_PAGE = 1000
_LARGEST_ANSWER = 64 * 2**20


class Api:
    """Requests about one source."""

    def __init__(self, http: HttpClient, uri: str, place: Place, token: Token | None) -> None:
        self._http = http
        self._uri = uri
        self._token = token
        self.place = place
        base = place.endpoint or f"https://{place.host}"
        self._objects = f"{base}/storage/v1/b/{quote(place.bucket, safe='')}/o"

    @property
    def open_to_all(self) -> bool:
        """Whether requests are sent without a credential."""
        return self._token is None

    def objects(self, prefix: str, each: Each = just_once) -> Iterator[Mapping[str, Any]]:
        """The metadata of what begins so, page by page."""
        query = {
            "prefix": prefix,
            "maxResults": _PAGE,
            "fields": "items(name,size,generation,md5Hash,crc32c),nextPageToken",
        }

        def ask(token: str | None) -> tuple[Mapping[str, Any], str | None]:
            asked = urlencode({**query, **({"pageToken": token} if token else {})})
            answer = each(partial(self._json, f"{self._objects}?{asked}"))
            return answer, str(answer.get("nextPageToken") or "") or None

        for answer in pages_of(self._uri, ask):
            items = answer.get("items") or []
            if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
                raise self._senseless()
            yield from items

    def object(self, key: str) -> Mapping[str, Any] | None:
        """The metadata of one object, if there is one."""
        try:
            return self._json(f"{self._objects}/{quote(key, safe='')}")
        except SourceGone:
            return None

    def media(self, key: str, file: SourceFile) -> str:
        """The URL of an object's bytes at a generation."""
        kind, _, number = file.validator.partition(":")
        query = {"alt": "media", **({"generation": number} if kind == "generation" else {})}
        return f"{self._objects}/{quote(key, safe='')}?{urlencode(query)}"

    def get(
        self, url: str, what: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Response]:
        """One request; see Token."""
        sent = {"User-Agent": "trainctl", **headers}
        if self._token is None:
            return self._http.get(url, what, sent)
        return self._token.get(self._http, url, what, sent)

    def _json(self, url: str) -> Mapping[str, Any]:
        with self.get(url, self._uri, {}) as response:
            try:
                found = json_of(response.read(_LARGEST_ANSWER))
            except ValueError:
                found = None
        if not isinstance(found, dict):
            raise self._senseless()
        return found

    def _senseless(self) -> SourceError:
        return SourceError(
            f"{self._uri}: {self.place.host} gave an answer that makes no sense",
            "It may not be the server that this source is on.",
        )

"""The JSON API of Google Cloud Storage: https://cloud.google.com/storage/docs/json_api/v1/objects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from trainctl.errors import SourceDenied, SourceError, SourceGone
from trainctl.model.files import SourceFile
from trainctl.objects.access import Bearer, ServiceAccount, access_of
from trainctl.objects.client import RENEWED_BEFORE
from trainctl.objects.exchange import token_of_service_account
from trainctl.objects.place import Place
from trainctl.spi.sources import Credential, Each, just_once
from trainctl.weights.sources.http import HttpClient, Response

_PAGE = 1000
_LARGEST_ANSWER = 64 * 2**20


class Token:
    """A credential as an access token, a new one when the old one has ended."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._lock = threading.Lock()
        self._bearer: Bearer | None = None
        self.origin = credential.origin

    def value(self) -> str:
        """What is sent. SourceDenied where Google gives none."""
        with self._lock:
            if self._bearer is None or _is_over(self._bearer):
                self._bearer = self._next()
            return self._bearer.token

    def refused(self, token: str) -> bool:
        """Forget a token that was refused; whether there can be another."""
        with self._lock:
            renewable = self._bearer is not None and self._bearer.ends is not None
            if renewable and self._bearer is not None and self._bearer.token == token:
                self._bearer = None
            return renewable

    def _next(self) -> Bearer:
        known = self._credential
        access = access_of("gs", known.value, known.origin)
        if isinstance(access, ServiceAccount):
            known = token_of_service_account(access.document, known.origin)
        elif isinstance(access, Bearer) and _is_over(access) and known.renew is not None:
            self._credential = known = known.renew()
        found = access_of("gs", known.value, known.origin)
        if not isinstance(found, Bearer):
            raise SourceDenied(f"{known.origin} gives no token")
        return found


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
        page = ""
        while True:
            query = {
                "prefix": prefix,
                "maxResults": _PAGE,
                "fields": "items(name,size,generation),nextPageToken",
                **({"pageToken": page} if page else {}),
            }
            answer = each(partial(self._json, f"{self._objects}?{urlencode(query)}"))
            yield from answer.get("items") or []
            page = str(answer.get("nextPageToken") or "")
            if not page:
                return

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

    @contextmanager
    def get(self, url: str, what: str, headers: Mapping[str, str]) -> Iterator[Response]:
        """One request, and one more with a new token where the old one is refused before its time."""
        sent = {"User-Agent": "trainctl", **headers}
        token = self._token.value() if self._token else None
        try:
            with self._http.get(url, what, sent, token) as response:
                yield response
                return
        except SourceDenied as error:
            if token is None or self._token is None or not self._token.refused(token):
                raise self._explained(error) from None
        try:
            with self._http.get(url, what, sent, self._token.value()) as response:
                yield response
        except SourceDenied as error:
            raise self._explained(error) from None

    def _json(self, url: str) -> Mapping[str, Any]:
        with self.get(url, self._uri, {}) as response:
            try:
                found = json.loads(response.read(_LARGEST_ANSWER))
            except ValueError:
                found = None
        if not isinstance(found, dict):
            raise SourceError(
                f"{self._uri}: {self.place.host} gave an answer that makes no sense",
                "It may not be the server that this source is on.",
            )
        return found

    def _explained(self, error: SourceDenied) -> SourceDenied:
        came = f"The credential came from {self._token.origin}. " if self._token else ""
        return SourceDenied(error.summary, f"{came}{error.detail}", code=error.code)


def _is_over(bearer: Bearer) -> bool:
    return bearer.ends is not None and bearer.ends - RENEWED_BEFORE <= datetime.now(UTC)

"""``gs:`` sources: what lies in one directory of a bucket of Google Cloud Storage, or one object.

Through the JSON API, https://cloud.google.com/storage/docs/json_api/v1/objects, as only that tells generations, by which
content stays the same. Links are signed by ``trainctl.objects``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from posixpath import basename, dirname
from typing import Any

from trainctl.base.listing import ResolvedSource, SourceFile, in_order
from trainctl.base.retry import Each, just_once
from trainctl.base.safe_path import shown
from trainctl.errors import SourceError, SourceGone
from trainctl.objects.access import ServiceAccount, access_of
from trainctl.objects.client import SILENCE_SECONDS, server_of
from trainctl.objects.place import Place, place_of
from trainctl.objects.store import Bucket
from trainctl.spi.sources import Credential, Fill, Span
from trainctl.weights.sources.bodies import asked_for, part, rest
from trainctl.weights.sources.bucket import LINK_SECONDS, sent_of
from trainctl.weights.sources.gs_api import Api
from trainctl.weights.sources.http import HttpClient, Response
from trainctl.weights.sources.paging import below
from trainctl.weights.sources.tokens import Tokens
from trainctl.weights.sources.told import size_of
from trainctl.weights.sources.validators import digest_told


class GoogleSource:
    """Speaks the JSON API. ``silence`` is the longest wait for a byte, in seconds."""

    def __init__(
        self, silence: float = SILENCE_SECONDS, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._http = HttpClient(silence)
        self._environ = environ
        self._lock = threading.Lock()
        self._tokens = Tokens("gs", environ)
        self._directories: dict[str, str] = {}

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        """Everything in the directory that the URI names, or the object of exactly that name; no revision of its own."""
        return self.resolve_by(uri, revision, credential, just_once)

    def resolve_by(
        self, uri: str, revision: str | None, credential: Credential | None, each: Each
    ) -> ResolvedSource:
        """See PagedSource."""
        call = self._call(uri, credential)
        directory = _directory(call.place)
        files = in_order(
            _described(uri, directory, one)
            for one in call.objects(directory, each)
            if not str(one.get("name", "")).endswith("/")
        )
        if not files and call.place.prefix and not uri.endswith("/"):
            directory = _directory(call.place.at(dirname(call.place.prefix)))
            found = each(partial(call.object, call.place.prefix))
            files = (_described(uri, directory, found),) if found else ()
        if not files:
            raise SourceGone(
                f"{uri}: nothing lies there", "Check its name, and which bucket it is in."
            )
        with self._lock:
            self._directories[uri] = directory
        return ResolvedSource(uri, "", files)

    def server(self, uri: str, credential: Credential | None) -> str | None:
        """What the manifest or the environment names."""
        return server_of(self._place(uri, credential), None)

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        """A URL that a service account has signed for an hour; of a bucket that is open to all, the object's own."""
        if self.relays(file, credential):
            return None
        call = self._call(resolved.source, credential)
        key = self._key(call, resolved, file)
        sent = sent_of(credential)
        if sent is None or call.open_to_all:
            return call.media(key, file)
        access = access_of("gs", sent.value, sent.origin)
        return Bucket(call.place.at(""), access, environ=self._environ).sign(key, LINK_SECONDS)

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        """Only the key of a service account can sign, not a token."""
        sent = sent_of(credential)
        return sent is not None and not isinstance(
            access_of("gs", sent.value, sent.origin), ServiceAccount
        )

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        """The object's bytes at the generation that it was resolved at."""
        what = f"{resolved.source}: {shown(file.path)}"
        with self._bytes(resolved, file, asked_for(offset), credential, what) as response:
            yield rest(response, what, file, offset)

    @contextmanager
    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> Iterator[Fill | None]:
        """See PartSource."""
        what = f"{resolved.source}: {shown(file.path)}"
        with self._bytes(resolved, file, asked_for(*span), credential, what) as response:
            yield part(response, what, file, span)

    def _bytes(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: Credential | None,
        what: str,
    ) -> AbstractContextManager[Response]:
        call = self._call(resolved.source, credential)
        return call.get(call.media(self._key(call, resolved, file), file), what, ranged)

    def _place(self, uri: str, credential: Credential | None) -> Place:
        return place_of(uri, credential.endpoint if credential else None, self._environ)

    def _call(self, uri: str, credential: Credential | None) -> Api:
        place, sent = self._place(uri, credential), sent_of(credential)
        token = None
        # A key would be exchanged for a token at Google's own servers.
        if sent is not None and not place.emulated:
            token = self._tokens.of(sent)
        return Api(self._http, uri, place, token)

    def _key(self, call: Api, resolved: ResolvedSource, file: SourceFile) -> str:
        """The object's name; whether the source is a directory is found out where another process resolved it."""
        with self._lock:
            directory = self._directories.get(resolved.source)
        if directory is None:
            directory = _directory(call.place)
            if file.path == basename(call.place.prefix) and not next(call.objects(directory), None):
                directory = _directory(call.place.at(dirname(call.place.prefix)))
            with self._lock:
                self._directories[resolved.source] = directory
        return directory + file.path


def _described(uri: str, directory: str, one: Mapping[str, Any]) -> SourceFile:
    try:
        name, size, generation = str(one["name"]), size_of(one["size"]), int(one["generation"])
    except (KeyError, TypeError, ValueError):
        raise SourceError(
            f"{uri}: its server lists an object without name, size or generation",
            "It may not be the server that this source is on.",
        ) from None
    told = (("md5", one.get("md5Hash")), ("crc32c", one.get("crc32c")))
    checksum = " ".join(filter(None, (digest_told(*each) for each in told)))
    return SourceFile(below(directory, name, uri), size, f"generation:{generation}", checksum)


def _directory(place: Place) -> str:
    return f"{place.prefix}/" if place.prefix else ""

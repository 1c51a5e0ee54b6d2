"""A source as a host reads it: through addresses that its caller resolved and signed, and with no credential of anybody's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Mapping, NamedTuple

from trainctl.errors import SourceDenied, SourceError, SourceWrong
from trainctl.model.files import ResolvedSource, SourceFile, place_of
from trainctl.spi.sources import Credential, Fill, Span
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES
from trainctl.weights.safe_path import shown
from trainctl.weights.sources.bodies import asked_for, part, rest
from trainctl.weights.sources.http import HttpClient, Response
from trainctl.weights.sources.https import HttpsSource
from trainctl.weights.sources.validators import refuse_replaced

_Link = Mapping[str, Any]
_AT_ONCE = 32
"""Links that are asked for together: few enough that the last is used before it expires."""
_MOST_KEPT = 1024
"""Links that are kept for who asks again for the same file: more than are on their way."""


class _Found(NamedTuple):
    link: _Link
    fresh: bool


class SignedSource:
    """Reads files by links. ``in_turn``: what a source is said to have resolved to is what is wanted of it, its small files in their order."""

    def __init__(self, caller: Caller, *, in_turn: bool) -> None:
        self._caller = caller
        self._in_turn = in_turn
        self._lock = threading.Lock()
        self._links: dict[tuple[str, str], _Link] = {}
        self._http = HttpClient()
        self._near = HttpClient(direct=True)
        self._web = HttpsSource()

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        """It is the caller that resolves."""
        raise SourceError(f"{uri} is not resolved here")

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        """It is the caller that signs."""
        return None

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        """It is the caller that relays."""
        return False

    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> AbstractContextManager[Iterator[bytes]]:
        """See WeightSource."""
        found = self._link(resolved, file)
        if resolved.source.startswith("https:") and not found.link.get("relayed"):
            return self._web.open(resolved, file, offset, None)
        return self._rest(resolved, file, found, offset)

    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> AbstractContextManager[Fill | None]:
        """See PartSource. The caller relays whole files only."""
        found = self._link(resolved, file)
        if found.link.get("relayed"):
            return nullcontext()
        if resolved.source.startswith("https:"):
            return self._web.part(resolved, file, span, None)
        return self._part(resolved, file, found, span)

    @contextmanager
    def _rest(
        self, resolved: ResolvedSource, file: SourceFile, found: _Found, offset: int
    ) -> Iterator[Iterator[bytes]]:
        what = f"{resolved.source}: {shown(file.path)}"
        with self._answer(resolved, file, found, asked_for(offset)) as response:
            yield rest(response, what, file, offset)

    @contextmanager
    def _part(
        self, resolved: ResolvedSource, file: SourceFile, found: _Found, span: Span
    ) -> Iterator[Fill | None]:
        what = f"{resolved.source}: {shown(file.path)}"
        with self._answer(resolved, file, found, asked_for(*span)) as response:
            yield part(response, what, file, span)

    @contextmanager
    def _answer(
        self, resolved: ResolvedSource, file: SourceFile, found: _Found, ranged: Mapping[str, str]
    ) -> Iterator[Response]:
        """What a link leads to. One that was made before is replaced once where it is refused: it may have expired."""
        what = f"{resolved.source}: {shown(file.path)}"
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._follow(found.link, what, file, ranged))
            except SourceError as error:
                if found.fresh or error.retryable or isinstance(error, SourceWrong):
                    raise
                self._forget(resolved, file, found.link)
                link = self._link(resolved, file).link
                response = stack.enter_context(self._follow(link, what, file, ranged))
            yield response

    @contextmanager
    def _follow(
        self, link: _Link, what: str, file: SourceFile, ranged: Mapping[str, str]
    ) -> Iterator[Response]:
        client = self._near if link.get("relayed") else self._http
        headers = {"User-Agent": "trainctl", **ranged}
        with _explained(what, link), client.get(
            link["url"], what, headers, link.get("token")
        ) as response:
            if not link.get("relayed"):
                refuse_replaced(response.headers, what, file)
            yield response

    def _link(self, resolved: ResolvedSource, file: SourceFile) -> _Found:
        """The file's link, made now if there is none."""
        key = (resolved.source, file.path)
        with self._lock:
            if key in self._links:
                return _Found(self._links[key], fresh=False)
            paths = [file.path, *self._after(resolved, file)]
            answer = self._caller.ask(
                {
                    "want": "links",
                    "source": resolved.source,
                    "revision": resolved.revision,
                    "paths": paths,
                }
            )
            for path, link in zip(paths, answer["links"]):
                self._links[resolved.source, path] = link
            while len(self._links) > _MOST_KEPT:
                del self._links[next(iter(self._links))]
            return _Found(self._links[key], fresh=True)

    def _after(self, resolved: ResolvedSource, file: SourceFile) -> Iterator[str]:
        """The small files that come after it and have no link yet. Large ones have a turn of their own."""
        if not self._in_turn or file.size > LARGE_FROM_BYTES:
            return
        start = place_of(resolved.files, file.path) + 1
        for one in resolved.files[start : start + _AT_ONCE - 1]:
            if one.size <= LARGE_FROM_BYTES and (resolved.source, one.path) not in self._links:
                yield one.path

    def _forget(self, resolved: ResolvedSource, file: SourceFile, link: _Link) -> None:
        with self._lock:
            if self._links.get((resolved.source, file.path)) is link:
                del self._links[resolved.source, file.path]


@contextmanager
def _explained(what: str, link: _Link) -> Iterator[None]:
    """A link that is refused says nothing of whether a credential is missing."""
    try:
        yield
    except SourceDenied as error:
        if link.get("relayed"):
            raise
        raise SourceDenied(
            f"{what}: this host was refused the link that was made for it",
            f"Links hold for a while, and may hold for one network only. {error.summary}.",
        ) from None

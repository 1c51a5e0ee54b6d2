"""A source as a host reads it: through addresses that its caller resolved and signed, and with no credential of anybody's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Mapping

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.safe_path import shown
from trainctl.errors import SourceDenied, SourceError, SourceWrong
from trainctl.sources.bodies import asked_for, part, rest
from trainctl.sources.client import SourceClient, SourceResponse
from trainctl.sources.https import HttpsSource
from trainctl.sources.validators import refuse_replaced
from trainctl.spi.sources import Credential, Fill, Span
from trainctl.weights.mirror.links import Found, Links

_Link = Mapping[str, Any]


class SignedSource:
    """Reads files by links."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._http = SourceClient()
        self._near = SourceClient(direct=True)
        self._web = HttpsSource()

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        """It is the caller that resolves."""
        raise SourceError(f"{uri} is not resolved here")

    def server(self, uri: str, credential: Credential | None) -> str | None:
        """It is the caller that knows."""
        return None

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
        found = self._links.find(resolved, file)
        if resolved.source.startswith("https:") and not found.link.get("relayed"):
            return self._web.open(resolved, file, offset, None)
        return self._rest(resolved, file, found, offset)

    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> AbstractContextManager[Fill | None]:
        """See PartSource. The caller relays whole files only."""
        found = self._links.find(resolved, file)
        if found.link.get("relayed"):
            return nullcontext()
        if resolved.source.startswith("https:"):
            return self._web.part(resolved, file, span, None)
        return self._part(resolved, file, found, span)

    def told(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str:
        """See TellingSource. It is the caller that asks: a link is for the bytes."""
        return self._links.told(resolved, file)

    @contextmanager
    def _rest(
        self, resolved: ResolvedSource, file: SourceFile, found: Found, offset: int
    ) -> Iterator[Iterator[bytes]]:
        what = f"{resolved.source}: {shown(file.path)}"
        with self._answer(resolved, file, found, asked_for(offset)) as response:
            yield rest(response, what, file, offset)

    @contextmanager
    def _part(
        self, resolved: ResolvedSource, file: SourceFile, found: Found, span: Span
    ) -> Iterator[Fill | None]:
        what = f"{resolved.source}: {shown(file.path)}"
        with self._answer(resolved, file, found, asked_for(*span)) as response:
            yield part(response, what, file, span)

    @contextmanager
    def _answer(
        self, resolved: ResolvedSource, file: SourceFile, found: Found, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        """What a link leads to. One that was made before is replaced once where it is refused: it may have expired."""
        what = f"{resolved.source}: {shown(file.path)}"
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._follow(found.link, what, file, ranged))
            except SourceError as error:
                if found.fresh or error.retryable or isinstance(error, SourceWrong):
                    raise
                self._links.forget(resolved, file, found)
                link = self._links.find(resolved, file).link
                response = stack.enter_context(self._follow(link, what, file, ranged))
            yield response

    @contextmanager
    def _follow(
        self, link: _Link, what: str, file: SourceFile, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        client = self._near if link.get("relayed") else self._http
        headers = {"User-Agent": "trainctl", **ranged}
        with _explained(what, link), client.get(
            link["url"], what, headers, link.get("token")
        ) as response:
            if not link.get("relayed"):
                refuse_replaced(response.headers, what, file)
            yield response


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

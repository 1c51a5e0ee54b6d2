"""A source as this host reads it: by links that the caller made, and without any credential."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import ContextManager, Iterator, Mapping, Optional, Set

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.safe_path import shown
from trainctl.errors import SourceDenied, SourceError, SourceWrong
from trainctl.node.mirror.links import Link, Links
from trainctl.sources.bodies import asked_for, part, rest
from trainctl.sources.client import SourceClient, SourceResponse
from trainctl.sources.https import HttpsSource
from trainctl.sources.validators import no_md5, refuse_replaced
from trainctl.spi.sources import Fill, Span


class LinkedUpstream:
    """An Upstream."""

    def __init__(self, resolved: ResolvedSource, links: Links) -> None:
        self._resolved = resolved
        self._links = links
        self._client = SourceClient()
        self._relay = SourceClient(direct=True)
        self._web = HttpsSource()
        self._without_md5: Set[str] = set()

    @property
    def source(self) -> str:
        """See Upstream."""
        return self._resolved.source

    def checksum(self, file: SourceFile) -> str:
        """See Upstream. What the responses with its bytes said of the file: a link is for nothing else."""
        return "" if file.path in self._without_md5 else file.checksum

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """See Upstream."""
        link = self._links.find(file)
        if self._is_own_address(link):
            return self._web.open(self._resolved, file, offset, None)
        return self._rest(file, link, offset)

    @contextmanager
    def part(self, file: SourceFile, offset: int, length: int) -> Iterator[Optional[Fill]]:
        """See Upstream. The caller relays whole files only."""
        link, span = self._links.find(file), Span(offset, length)
        if link.is_relayed:
            yield None
        elif self._is_own_address(link):
            with self._web.part(self._resolved, file, span, None) as fill:
                yield fill
        else:
            with self._response(file, link, asked_for(*span)) as response:
                yield part(response, self._named(file), file, span)

    def _is_own_address(self, link: Link) -> bool:
        return self.source.startswith("https:") and not link.is_relayed

    def _named(self, file: SourceFile) -> str:
        return f"{self.source}: {shown(file.path)}"

    @contextmanager
    def _rest(self, file: SourceFile, link: Link, offset: int) -> Iterator[Iterator[bytes]]:
        with self._response(file, link, asked_for(offset)) as response:
            yield rest(response, self._named(file), file, offset)

    @contextmanager
    def _response(
        self, file: SourceFile, link: Link, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        """The response to a link. One that was made earlier may have expired: it is replaced once if it is refused."""
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._follow(file, link, ranged))
            except SourceError as error:
                if link.is_new or error.retryable or isinstance(error, SourceWrong):
                    raise
                self._links.forget(file, link)
                response = stack.enter_context(self._follow(file, self._links.find(file), ranged))
            yield response

    @contextmanager
    def _follow(
        self, file: SourceFile, link: Link, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        what = self._named(file)
        client = self._relay if link.is_relayed else self._client
        headers = {"User-Agent": "trainctl", **ranged}
        with _explained(what, link), client.get(
            link.url, what, headers, link.token or None
        ) as response:
            if not link.is_relayed:
                refuse_replaced(response.headers, what, file)
            if no_md5(response.headers):
                self._without_md5.add(file.path)
            yield response


@contextmanager
def _explained(what: str, link: Link) -> Iterator[None]:
    """Say that it was a link that was refused: a credential may be there."""
    try:
        yield
    except SourceDenied as error:
        if link.is_relayed:
            raise
        raise SourceDenied(
            f"{what}: this host was refused the link that was made for it",
            f"Links are valid for a while, and may be for one network only. {error.summary}.",
        ) from None

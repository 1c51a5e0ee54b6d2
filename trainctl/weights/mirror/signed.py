"""A source as a host reads it: through addresses that its caller resolved and signed, and with no credential of anybody's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from trainctl.errors import SourceDenied, SourceError, SourceWrong
from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.spi.sources import Credential
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.safe_path import shown
from trainctl.weights.sources.bodies import rest
from trainctl.weights.sources.http import HttpClient
from trainctl.weights.sources.https import HttpsSource
from trainctl.weights.sources.validators import refuse_replaced

_AT_ONCE = 32
"""Links that are asked for together: few enough that the last is used before it expires."""


class SignedSource:
    """Reads files by links. ``wanted`` are the paths in the order in which they will be read, of each source by its URI."""

    def __init__(self, caller: Caller, wanted: Mapping[str, Sequence[str]]) -> None:
        self._caller = caller
        self._wanted = {source: list(paths) for source, paths in wanted.items()}
        self._lock = threading.Lock()
        self._links: dict[tuple[str, str], Mapping[str, Any]] = {}
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

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        """The file's bytes. A link that was made before is replaced once where it is refused: it may have expired."""
        with ExitStack() as stack:
            link, fresh = self._link(resolved, file)
            try:
                pieces = stack.enter_context(self._follow(link, resolved, file, offset))
            except SourceError as error:
                if fresh or error.retryable or isinstance(error, SourceWrong):
                    raise
                self._forget(resolved, file, link)
                link, _ = self._link(resolved, file)
                pieces = stack.enter_context(self._follow(link, resolved, file, offset))
            yield pieces

    @contextmanager
    def _follow(
        self, link: Mapping[str, Any], resolved: ResolvedSource, file: SourceFile, offset: int
    ) -> Iterator[Iterator[bytes]]:
        if link.get("relayed") or not resolved.source.startswith("https:"):
            what = f"{resolved.source}: {shown(file.path)}"
            client = self._near if link.get("relayed") else self._http
            headers = {
                "User-Agent": "trainctl",
                **({"Range": f"bytes={offset}-"} if offset else {}),
            }
            with _explained(what, link), client.get(
                link["url"], what, headers, link.get("token")
            ) as response:
                if not link.get("relayed"):
                    refuse_replaced(response.headers, what, file)
                yield rest(response, what, file, offset)
        else:
            with self._web.open(resolved, file, offset, None) as pieces:
                yield pieces

    def _link(self, resolved: ResolvedSource, file: SourceFile) -> tuple[Mapping[str, Any], bool]:
        """The file's link, and whether it was made just now."""
        key = (resolved.source, file.path)
        with self._lock:
            if key in self._links:
                return self._links[key], False
            paths = self._next(resolved.source, file.path)
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
            return self._links[key], True

    def _next(self, source: str, path: str) -> list[str]:
        """The file and those that come after it and have no link yet."""
        wanted = self._wanted.get(source, [])
        after = wanted[wanted.index(path) + 1 :] if path in wanted else []
        missing = [one for one in after if (source, one) not in self._links]
        return [path, *missing[: _AT_ONCE - 1]]

    def _forget(self, resolved: ResolvedSource, file: SourceFile, link: Mapping[str, Any]) -> None:
        with self._lock:
            if self._links.get((resolved.source, file.path)) is link:
                del self._links[resolved.source, file.path]


@contextmanager
def _explained(what: str, link: Mapping[str, Any]) -> Iterator[None]:
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

"""Links by which a host reads a source: signed with the operator's credential, or to a relay in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from trainctl.base.listing import ResolvedSource, SourceFile, place_of
from trainctl.base.retry import Retry
from trainctl.errors import SourceError, TrainctlError
from trainctl.remote.agent import NodeAgent
from trainctl.resources.relay import Relay, relaying
from trainctl.resources.tokens import new_token

_AT_ONCE = 8
Register = Callable[[str], str]


class Upstream(Protocol):
    """A source with whatever opens it; see ``trainctl.store``."""

    def open(self, file: SourceFile, offset: int) -> AbstractContextManager[Iterator[bytes]]:
        """The file's bytes from the offset on."""
        ...


@runtime_checkable
class LinkingUpstream(Upstream, Protocol):
    """An Upstream that can make links. Of any other all files go through this process."""

    def link(self, file: SourceFile) -> str | None:
        """A URL by which a host may read the file for a while; None if there is none."""
        ...


class SourceLinks:
    """``with SourceLinks(…) as links``: answers a host that asks for links to files of one source, and of no other.

    ``register`` has what signs a link masked everywhere; ``ended`` ends retries.
    """

    def __init__(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        agent: NodeAgent,
        register: Register,
        retry: Retry,
        ended: threading.Event,
    ) -> None:
        self._resolved = resolved
        self._upstream = upstream
        self._agent = agent
        self._register = register
        self._retry = retry
        self._ended = ended
        self._lock = threading.Lock()
        self._relay: tuple[Relay, int] | None = None
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="link")
        self._stack = ExitStack()

    def __enter__(self) -> SourceLinks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    @property
    def relay_error(self) -> TrainctlError | None:
        """Why the relay couldn't send a file."""
        return self._relay[0].error if self._relay else None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The links that a host asks for, in order. SourceError if it asks for anything else."""
        if question.get("want") != "links":
            raise SourceError(f"a host asked for {question.get('want')!r} instead of links")
        numbers = [self._number(path) for path in question["paths"]]
        return {"links": list(self._pool.map(self._link, numbers))}

    def _number(self, path: str) -> int:
        files = self._resolved.files
        number = place_of(files, path)
        if number == len(files) or files[number].path != path:
            raise SourceError(f"{self._resolved.source} has no file {path!r} that a host may read")
        return number

    def _link(self, number: int) -> dict[str, Any]:
        upstream, file = self._upstream, self._resolved.files[number]
        url = None
        if isinstance(upstream, LinkingUpstream):
            url = self._retry.run(lambda: upstream.link(file), self._ended)
        if url is None:
            relay, port = self._opened_relay()
            url = f"http://127.0.0.1:{port}{relay.path_of(number)}"
            return {"url": url, "token": relay.token, "relayed": True}
        query = url.partition("?")[2]
        if query:
            self._register(query)
        return {"url": url}

    def _opened_relay(self) -> tuple[Relay, int]:
        with self._lock:
            if self._relay is None:
                token = self._register(new_token())
                opened = relaying(token, self._resolved.files, self._upstream.open)
                relay = self._stack.enter_context(opened)
                self._relay = relay, self._stack.enter_context(self._agent.expose(relay.port))
            return self._relay

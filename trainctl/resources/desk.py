"""Answering what a mirror program asks while it works: links to files, and sources as they are upstream now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from trainctl.base.listing import SourceFile, place_of
from trainctl.base.protocol.verb import untyped
from trainctl.errors import SourceError, SourceUnreachable, TrainctlError
from trainctl.remote.agent import NodeAgent
from trainctl.resources.conversation import Conversation, Told
from trainctl.resources.relay import Relay, relaying
from trainctl.resources.tokens import new_token
from trainctl.spi.sources import TellingSource
from trainctl.weights.mirror.afresh import Origin, Origins
from trainctl.weights.mirror.forms import file_rows, resolved_to_json
from trainctl.weights.mirror.layout import named_in

_AT_ONCE = 8
_ROWS_AT_ONCE = 5000
_FROM_HERE = (
    "It is the mirror's host that asks. Where only this machine can reach it, "
    "keep the mirror here: mirror: {url: file:///DIRECTORY}"
)
Register = Callable[[str], str]


class Desk:
    """``with Desk(…) as desk``: one conversation with a mirror program.

    Links are made with the operator's credentials, which stay here, and are masked from their birth on. ``told`` hears
    the events that ask nothing. ``stop`` ends the conversation, and with it the program's work.
    """

    def __init__(
        self, agent: NodeAgent, register: Register, told: Told, stop: threading.Event | None
    ) -> None:
        self._agent = agent
        self._register = register
        self._conversation = Conversation(agent, self._answer, told, stop)
        self._lock = threading.Lock()
        self._origins: dict[tuple[str, str | None, str], Origin] = {}
        self._relays: dict[tuple[str, str | None, str], tuple[Relay, int]] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="link")
        self._stack = ExitStack()
        self.origins: Origins | None = None
        """Finds a source that the program asks for and that was not offered."""

    def __enter__(self) -> Desk:
        self._conversation.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._conversation.__exit__(kind, error, trace)
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def offer(self, origin: Origin) -> None:
        """Answer for a source that is resolved."""
        resolved = origin.resolved
        self._origins[resolved.source, resolved.endpoint, resolved.revision] = origin

    def call(
        self, verb: str, request: Mapping[str, Any], following: Iterable[bytes] = ()
    ) -> dict[str, Any]:
        """Have the program do it; its result. An error that happened here is raised as it was here, not as the host tells it."""
        try:
            return self._conversation.call(untyped(verb), request, following)
        except TrainctlError as error:
            relayed = next((relay.error for relay, _ in self._relays.values() if relay.error), None)
            if relayed is not None and isinstance(error, SourceError):
                raise relayed from None
            if isinstance(error, SourceUnreachable) and error.summary.startswith("node "):
                # The host's own words: what failed here isn't told as a node's.
                error.detail = f"{error.detail} {_FROM_HERE}".strip()
            raise

    def _answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        kinds = {"links": self._links, "files": self._files, "told": self._told}
        return kinds.get(str(event["want"]), self._origin)(event)

    def _origin(self, event: Mapping[str, Any]) -> dict[str, Any]:
        if self.origins is None:
            raise SourceError("no source was offered to be asked for")
        record = {name: event.get(name) for name in ("source", "endpoint", "revision")}
        origin = self.origins(record, self._conversation.ended)
        self.offer(origin)
        return {"resolved": resolved_to_json(origin.resolved)}

    def _files(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The next of the files of a source."""
        files, after = self._offered(event).resolved.files, int(event["after"])
        return {"rows": list(file_rows(files[after : after + _ROWS_AT_ONCE]))}

    def _links(self, event: Mapping[str, Any]) -> dict[str, Any]:
        origin, numbers = self._asked_for(event)
        return {"links": [*self._pool.map(lambda number: self._link(origin, number), numbers)]}

    def _told(self, event: Mapping[str, Any]) -> dict[str, Any]:
        origin, numbers = self._asked_for(event)
        return {"told": [self._told_of(origin, number) for number in numbers]}

    def _asked_for(self, event: Mapping[str, Any]) -> tuple[Origin, list[int]]:
        """Of which source, and the numbers of which of its files."""
        origin = self._offered(event)
        files = origin.resolved.files
        numbers = [place_of(files, path) for path in event["paths"]]
        for number, path in zip(numbers, event["paths"], strict=True):
            if number == len(files) or files[number].path != path:
                raise _not_offered(event)
        return origin, numbers

    def _offered(self, event: Mapping[str, Any]) -> Origin:
        origin = self._origins.get(named_in(event))
        if origin is None:
            raise _not_offered(event)
        return origin

    def _link(self, origin: Origin, number: int) -> dict[str, Any]:
        file = origin.resolved.files[number]
        url = origin.retry.run(
            lambda: origin.source.link(origin.resolved, file, origin.credential),
            self._conversation.ended,
        )
        if url is None:
            relay, port = self._open_relay(origin)
            path = relay.path_of(number)
            return {"url": f"http://127.0.0.1:{port}{path}", "token": relay.token, "relayed": True}
        query = url.partition("?")[2]
        if query:
            self._register(query)
        return {"url": url}

    def _told_of(self, origin: Origin, number: int) -> str:
        """What upstream tells of a file's bytes when it is asked for this one."""
        source, file = origin.source, origin.resolved.files[number]
        if not isinstance(source, TellingSource):
            return file.checksum
        return origin.retry.run(
            lambda: source.told(origin.resolved, file, origin.credential), self._conversation.ended
        )

    def _open_relay(self, origin: Origin) -> tuple[Relay, int]:
        resolved = origin.resolved
        known = resolved.source, resolved.endpoint, resolved.revision
        with self._lock:
            if known not in self._relays:
                token = self._register(new_token())
                opened = relaying(token, resolved.files, partial(_open, origin))
                relay = self._stack.enter_context(opened)
                port = self._stack.enter_context(self._agent.expose(relay.port))
                self._relays[known] = (relay, port)
            return self._relays[known]


def _open(origin: Origin, file: SourceFile, offset: int) -> AbstractContextManager[Iterator[bytes]]:
    return origin.source.open(origin.resolved, file, offset, origin.credential)


def _not_offered(event: Mapping[str, Any]) -> SourceError:
    return SourceError(f"{event['source']!r} has no such file that was to be mirrored")

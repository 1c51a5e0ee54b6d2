"""Answering what a mirror program asks while it works: links to files, and sources as they are upstream now."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from trainctl.errors import SourceError, TrainctlError
from trainctl.model.files import SourceFile
from trainctl.remote.agent import NodeAgent
from trainctl.resources.relay import Relay, relaying
from trainctl.resources.tokens import new_token
from trainctl.weights.mirror.forms import error_to_json, resolved_to_json
from trainctl.weights.mirror.mend import Origin
from trainctl.weights.mirror.port import Origins

_BEAT_SECONDS = 0.2
_AT_ONCE = 8
Register = Callable[[str], str]
Told = Callable[[Mapping[str, Any]], None]


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
        self._told = told
        self._stop = stop or threading.Event()
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._origins: dict[tuple[str, str], Origin] = {}
        self._relay: tuple[Relay, int] | None = None
        self._stack = ExitStack()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="answer")
        self._ended = threading.Event()
        self._failed: BaseException | None = None
        self._answered: dict[str, TrainctlError] = {}
        self.origins: Origins | None = None
        """Finds a source that the program asks for and that was not offered."""

    def __enter__(self) -> Desk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def offer(self, origin: Origin) -> None:
        """Answer for a source that is resolved."""
        self._origins[origin.resolved.source, origin.resolved.revision] = origin

    def call(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the program do it; its result. An error that happened here is raised as it was here, not as the host tells it."""
        try:
            result = self._agent.call(verb, request, payload=self._lines(), on_event=self._on_event)
        except TrainctlError as error:
            self._raise_failure()
            relayed = self._relay[0].error if self._relay else None
            if relayed is not None and isinstance(error, SourceError):
                raise relayed from None
            raise self._answered.get(error.summary.partition(": ")[2], error) from None
        self._raise_failure()
        return result

    def _raise_failure(self) -> None:
        """Whatever the host says then: it was left without an answer."""
        if self._failed is not None:
            raise self._failed

    def _lines(self) -> Iterator[bytes]:
        """Answers as they are ready, and meanwhile that somebody is here."""
        while not (self._stop.is_set() or self._ended.is_set()):
            try:
                yield self._replies.get(timeout=_BEAT_SECONDS)
            except queue.Empty:
                yield b"\n"

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "ask" in event:
            self._pool.submit(self._answer, event).add_done_callback(self._check)
        else:
            self._told(event)

    def _check(self, answered: Future[None]) -> None:
        """Nobody is to wait for an answer that can't come any more."""
        failure = None if answered.cancelled() else answered.exception()
        if failure is not None:
            self._failed = failure
            self._ended.set()

    def _answer(self, event: Mapping[str, Any]) -> None:
        try:
            answer = self._links(event) if event["want"] == "links" else self._origin(event)
        except TrainctlError as error:
            answer = {"error": error_to_json(error)}
            self._answered[error.summary] = error
        self._replies.put(json.dumps({"answer": event["ask"], **answer}).encode() + b"\n")

    def _origin(self, event: Mapping[str, Any]) -> dict[str, Any]:
        if self.origins is None:
            raise SourceError("no source was offered to be asked for")
        record = {"source": event["source"], "revision": event["revision"]}
        origin = self.origins(record)
        self.offer(origin)
        return {"resolved": resolved_to_json(origin.resolved)}

    def _links(self, event: Mapping[str, Any]) -> dict[str, Any]:
        origin = self._origins.get((event["source"], event["revision"]))
        known = {file.path: file for file in origin.resolved.files} if origin else {}
        files = [known[path] for path in event["paths"] if path in known]
        if origin is None or len(files) < len(event["paths"]):
            raise SourceError(f"{event['source']!a} has no such file that was to be mirrored")
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="link") as pool:
            return {"links": [*pool.map(lambda file: self._link(origin, file), files)]}

    def _link(self, origin: Origin, file: SourceFile) -> dict[str, Any]:
        url = origin.retry.run(
            lambda: origin.source.link(origin.resolved, file, origin.credential), self._ended
        )
        if url is None:
            relay, port = self._open_relay()
            path = relay.offer(origin, file)
            return {"url": f"http://127.0.0.1:{port}{path}", "token": relay.token, "relayed": True}
        query = url.partition("?")[2]
        if query:
            self._register(query)
        return {"url": url}

    def _open_relay(self) -> tuple[Relay, int]:
        with self._lock:
            if self._relay is None:
                relay = self._stack.enter_context(relaying(self._register(new_token())))
                port = self._stack.enter_context(self._agent.expose(relay.port))
                self._relay = (relay, port)
            return self._relay

"""Conversations with a program on a node, and links by which a host reads a source."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from secrets import token_urlsafe
from types import TracebackType
from typing import Any, TypeVar

from trainctl.base.listing import ResolvedSource, file_index
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.wire import error_to_json
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceError, TrainctlError
from trainctl.remote.agent import NodeAgent
from trainctl.remote.processes import InputFeed
from trainctl.resources.mirror.relay import Relay, run_relay
from trainctl.store.ingestion.upstream import Upstream

Result = TypeVar("Result")
_HEARTBEAT_SECONDS = 0.2
_AT_ONCE = 8
EventHandler = Callable[[Mapping[str, Any]], None]
AnswerHandler = Callable[[Mapping[str, Any]], dict[str, Any]]


class NodeCall:
    """``with Conversation(…) as one``: ``response`` is what its questions are answered by, from many threads; ``on_other_event`` hears the events that ask nothing.

    ``stop`` ends the conversation, and with it the program's work.
    """

    def __init__(
        self,
        agent: NodeAgent,
        response: AnswerHandler,
        on_other_event: EventHandler,
        stop: threading.Event | None = None,
    ) -> None:
        self._agent = agent
        self._answers = response
        self._on_other_event = on_other_event
        self._stop = stop or threading.Event()
        self._replies = InputFeed()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="response")
        self._failed: BaseException | None = None
        self._answer_errors: dict[str, TrainctlError] = {}
        self.ended = threading.Event()
        """Set when nobody is to wait for anything any more."""

    def __enter__(self) -> NodeCall:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._pool.shutdown(cancel_futures=True)

    def call(
        self,
        method: Method[Any, Result],
        request: Mapping[str, Any],
        following: Iterable[bytes] = (),
    ) -> Result:
        """Have the program do it; its result. An error that happened here is raised as it was here, not as the node tells it."""
        heartbeat = threading.Thread(target=self._send_heartbeats, daemon=True, name="beat")
        heartbeat.start()
        try:
            result = self._agent.call(
                method,
                request,
                following=following,
                payload=self._replies,
                on_event=self._on_event,
            )
        except TrainctlError as error:
            self._raise_failure()
            # What the node tells of may have been an answer of this side's.
            raise self._answer_errors.get(error.summary.partition(": ")[2], error) from None
        finally:
            self.ended.set()
            heartbeat.join()
        self._raise_failure()
        return result

    def _raise_failure(self) -> None:
        """Whatever the node says then: it was left without an answer."""
        if self._failed is not None:
            raise self._failed

    def _send_heartbeats(self) -> None:
        """Say again and again that somebody is here, until nobody is."""
        while not (self._stop.is_set() or self.ended.wait(_HEARTBEAT_SECONDS)):
            self._replies.put(b"\n")
        self._replies.close()

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "request" in event:
            self._pool.submit(self._answer, event).add_done_callback(self._check)
        else:
            self._on_other_event(event)

    def _check(self, future: Future[None]) -> None:
        """Nobody is to wait for an answer that can't come any more."""
        failure = None if future.cancelled() else future.exception()
        if failure is not None:
            self._failed = failure
            self.ended.set()

    def _answer(self, event: Mapping[str, Any]) -> None:
        try:
            response = self._answers(event)
        except TrainctlError as error:
            response = {"error": error_to_json(error)}
            self._answer_errors[error.summary] = error
        self._replies.put(json.dumps({"response": event["request"], **response}).encode() + b"\n")


Register = Callable[[str], str]


class SourceUrlProvider:
    """``with SourceUrlProvider(…) as links``: answers a host that asks for links to files of one source, and of no other.

    ``register`` has what signs a link masked everywhere; ``ended`` ends retries.
    """

    def __init__(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        agent: NodeAgent,
        register: Register,
        retry: RetryPolicy,
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
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="presigned_url")
        self._stack = ExitStack()

    def __enter__(self) -> SourceUrlProvider:
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

    def response(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The links that a host asks for, in order. SourceError if it asks for anything else."""
        if question.get("method") != "links":
            raise SourceError(f"unexpected request from a host: {question.get('method')!r}")
        numbers = [self._number(path) for path in question["paths"]]
        return {"links": list(self._pool.map(self._link, numbers))}

    def _number(self, path: str) -> int:
        files = self._resolved.files
        number = file_index(files, path)
        if number == len(files) or files[number].path != path:
            raise SourceError(f"{self._resolved.source} has no file {path!r} that a host may read")
        return number

    def _link(self, number: int) -> dict[str, Any]:
        upstream, file = self._upstream, self._resolved.files[number]
        presigned_url = getattr(
            upstream, "presigned_url", None
        )  # of others all files go through this process
        url = self._retry.run(lambda: presigned_url(file), self._ended) if presigned_url else None
        if url is None:
            relay, port = self._open_relay()
            url = f"http://127.0.0.1:{port}{relay.path_of(number)}"
            return {"url": url, "token": relay.token, "relayed": True}
        query = url.partition("?")[2]
        if query:
            self._register(query)
        return {"url": url}

    def _open_relay(self) -> tuple[Relay, int]:
        with self._lock:
            if self._relay is None:
                token = self._register(token_urlsafe(32))
                opened = run_relay(token, self._resolved.files, self._upstream.open)
                relay = self._stack.enter_context(opened)
                self._relay = relay, self._stack.enter_context(self._agent.expose(relay.port))
            return self._relay

"""The node program of a host in this process: verbs are called as functions, everything else is as over a session."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from trainctl.base.protocol.method import Method, RequestT, ResponseT
from trainctl.base.protocol.wire import error_to_json
from trainctl.errors import TrainctlError
from trainctl.node import __main__ as program
from trainctl.remote.responses import OnEvent, error_from


class HostAgent:
    """Calls verbs as NodeAgent does; requests, events and answers are JSON on their way."""

    def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        following: Iterable[bytes] = (),
        payload: Iterable[bytes] = (),
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """See NodeAgent."""

        def emit(event: Mapping[str, Any]) -> None:
            output = _travelled(event)
            if on_event is not None:
                on_event(output)

        where = next(
            methods[method.name] for methods in program._ALL_METHODS if method.name in methods
        )
        arguments: list[Any] = [_travelled(request), emit]
        with _stream(chain(following, payload)) as caller:
            if method.name in program._CALLBACK_METHODS:
                arguments.append(caller)
            try:
                answer: ResponseT = _travelled(program._find_function(where)(*arguments))
            except TrainctlError as error:
                raise error_from("host", _travelled(error_to_json(error))) from error
        return answer

    def open(self, methods: Iterable[Method[Any, Any]]) -> None:
        """See NodeAgent."""


def _travelled(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _stream(pieces: Iterable[bytes]) -> Any:
    """What the program reads on standard input."""
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb", buffering=0) as stream:
            for piece in pieces:
                try:
                    stream.write(piece)
                except BrokenPipeError:
                    return

    threading.Thread(target=feed, daemon=True).start()
    return os.fdopen(reader, "rb")

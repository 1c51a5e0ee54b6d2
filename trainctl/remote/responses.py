"""Parse the node program's output, and map its errors to exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.errors import (
    NodeError,
    TrainctlError,
    error_class,
)

OnEvent = Callable[[Mapping[str, Any]], None]
_MAX_LINE_BYTES = 64 * 2**20  # a response is one line, also that of a large listing
_TAIL_LINES = 12  # a traceback's last frames and its message


class ResponseParser:
    """Parser of the node program's output; ``result`` is set at the call's end."""

    def __init__(self, node: str, on_event: OnEvent | None) -> None:
        self._node = node
        self._on_event = on_event
        self._rest = b""
        self.result: dict[str, Any] | None = None
        self.error: TrainctlError | None = None

    def feed(self, data: bytes) -> None:
        """Parse more output. NodeError if it is not the node program's."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise NodeError(
                f"unexpected response from node {self._node} (endless line)",
                code="node-program-failed",
            )
        for line in lines:
            self._parse(line)

    def _parse(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            raise NodeError(
                f"unexpected response from node {self._node} (not from the node program)",
                printable_tail(line),
                code="node-program-failed",
            ) from None
        if "event" in message:
            if self._on_event is not None:
                self._on_event(message["event"])
        elif "result" in message:
            self.result = message["result"]
        elif "error" in message:
            self.error = error_from(self._node, message["error"])


def error_from(node: str, value: Mapping[str, Any]) -> TrainctlError:
    """Convert an error that the node program reported."""
    error_type = error_class(str(value.get("kind"))) or NodeError
    summary = printable_tail(str(value.get("summary", "failed")).encode())
    detail = printable_tail(str(value.get("detail", "")).encode())
    return error_type(f"node {node}: {summary}", detail, code=value.get("code"))


def crash_error(node: str, exit_code: int, stderr: bytes) -> NodeError:
    """Error for a node program that ended without response, with its stderr."""
    return NodeError(
        f"the node program on {node} exited with {format_exit_status(exit_code)}",
        printable_tail(stderr),
        code="node-program-failed",
    )


def format_exit_status(code: int) -> str:
    """``exit code 3``, or ``signal 9`` for a negative one."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def printable_tail(text: bytes) -> str:
    """Last lines of untrusted text, with control characters escaped."""
    lines = text.decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(
        "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in line
        )
        for line in lines
    )

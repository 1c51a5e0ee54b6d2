"""The lines that a program on a node and its caller exchange. The protocol is in the house's DESIGN.md."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO, Dict, Mapping

from trainctl.base.failure import Failure


def read_request(stream: BinaryIO) -> Dict[str, Any]:
    """The request, which is the first line; Failure where it is none."""
    try:
        found = json.loads(stream.readline())
    except ValueError:
        raise Failure("request", "the request is not a line of JSON, or only part of one") from None
    if not isinstance(found, dict):
        raise Failure("request", "the request is not an object")
    return found


def emit(event: Mapping[str, Any]) -> None:
    """Tell the caller something before the end."""
    say({"event": event})


def say(message: Mapping[str, Any], *, raw: bool = False) -> None:
    """Print one line; a caller that has gone is no reason to stop."""
    stream = sys.stderr if raw else sys.stdout
    try:
        stream.write(json.dumps(message) + "\n")
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

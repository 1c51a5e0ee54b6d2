"""One call of the node program: a verb, one line of JSON, a result. The protocol is in the house's DESIGN.md."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any, BinaryIO, Dict, Mapping

from trainctl.node.cache_verbs import (
    cache_state,
    clear_cache,
    make_cache,
    read_cache,
    remove_cache,
)
from trainctl.node.checkpoints import (
    checkpoints,
    read_objects,
    remove_checkpoints,
    upload_checkpoints,
)
from trainctl.node.codes import has_code, put_code, read_code
from trainctl.node.collect import forget, forget_cache
from trainctl.node.deliver import cache_query, deliver
from trainctl.node.evict import cache_evict
from trainctl.node.facts import facts
from trainctl.node.failure import Failure, from_os_error
from trainctl.node.images import pull_image
from trainctl.node.log_lines import read_lines
from trainctl.node.metrics import metrics
from trainctl.node.requirements import build_environment
from trainctl.node.run_verbs import (
    list_runs,
    past,
    read_log,
    release,
    remove,
    reorder,
    start,
    status,
    stop,
)
from trainctl.node.verify import cache_verify

_VERBS = {
    "facts": facts,
    "cache_query": cache_query,
    "deliver": deliver,
    "pull_image": pull_image,
    "cache_evict": cache_evict,
    "cache_verify": cache_verify,
    "has_code": has_code,
    "build_environment": build_environment,
    "start": start,
    "status": status,
    "stop": stop,
    "reorder": reorder,
    "metrics": metrics,
    "past": past,
    "remove": remove,
    "release": release,
    "runs": list_runs,
    "forget": forget,
    "forget_cache": forget_cache,
    "make_cache": make_cache,
    "remove_cache": remove_cache,
    "cache_state": cache_state,
    "clear_cache": clear_cache,
    "checkpoints": checkpoints,
    "remove_checkpoints": remove_checkpoints,
    "upload_checkpoints": upload_checkpoints,
}
_WITH_PAYLOAD = {"put_code": put_code}
_RAW = {
    "read_log": read_log,
    "read_lines": read_lines,
    "read_objects": read_objects,
    "read_code": read_code,
    "read_cache": read_cache,
}
_COPY_BYTES = 2**20


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    verb = sys.argv[-1]
    request: Mapping[str, Any] = {}
    try:
        request = _request(sys.stdin.buffer)
        _dispatch(verb, request)
    except Failure as error:
        failure = error
    except OSError as error:
        failure = from_os_error(error, str(request.get("root", "/")))
    except KeyError as error:
        failure = Failure("request", f"the request for {verb} lacks {error}")
    else:
        return 0
    _say({"error": failure.to_json()}, raw=verb in _RAW)
    return 1


def _dispatch(verb: str, request: Mapping[str, Any]) -> None:
    if verb in _RAW:
        _RAW[verb](request, _write)
    elif verb in _WITH_PAYLOAD:
        with tempfile.TemporaryFile() as payload:
            _copy(sys.stdin.buffer, payload)
            _say({"result": _WITH_PAYLOAD[verb](request, _emit, payload)})
    elif verb in _VERBS:
        sys.stdin.buffer.read()
        _say({"result": _VERBS[verb](request, _emit)})
    else:
        raise Failure("request", f"this node program knows no verb {verb!a}")


def _request(stream: BinaryIO) -> Dict[str, Any]:
    try:
        found = json.loads(stream.readline())
    except ValueError:
        raise Failure("request", "the request is not a line of JSON, or only part of one") from None
    if not isinstance(found, dict):
        raise Failure("request", "the request is not an object")
    return found


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    for data in iter(lambda: source.read(_COPY_BYTES), b""):
        target.write(data)
    target.seek(0)


def _emit(event: Dict[str, Any]) -> None:
    _say({"event": event})


def _say(message: Dict[str, Any], *, raw: bool = False) -> None:
    """Print one line; a caller that has gone is no reason to stop."""
    stream = sys.stderr if raw else sys.stdout
    try:
        stream.write(json.dumps(message) + "\n")
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())

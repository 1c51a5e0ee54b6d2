"""One call of the node program: a verb, one line of JSON, a result. The protocol is in the house's DESIGN.md."""

from __future__ import annotations

import importlib
import sys
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.node.failure import Failure, from_os_error
from trainctl.node.protocol import emit, read_request, say

_VERBS = {
    "facts": "facts.facts",
    "inspect": "inspection.inspect",
    "vacancy": "vacancy.vacancy",
    "cache_query": "presence.cache_query",
    "pull_image": "images.pull_image",
    "cache_evict": "evict.cache_evict",
    "has_code": "codes.has_code",
    "build_environment": "requirements.build_environment",
    "start": "run_verbs.start",
    "give_secrets": "run_verbs.give_secrets",
    "status": "run_verbs.status",
    "stop": "run_verbs.stop",
    "reorder": "run_verbs.reorder",
    "metrics": "metrics.metrics",
    "past": "run_verbs.past",
    "remove": "run_verbs.remove",
    "release": "run_verbs.release",
    "runs": "run_verbs.list_runs",
    "forget": "collect.forget",
    "forget_cache": "collect.forget_cache",
    "make_cache": "cache_verbs.make_cache",
    "remove_cache": "cache_verbs.remove_cache",
    "cache_state": "cache_verbs.cache_state",
    "clear_cache": "cache_verbs.clear_cache",
    "checkpoints": "checkpoints.checkpoints",
    "remove_checkpoints": "checkpoints.remove_checkpoints",
    "upload_checkpoints": "checkpoints.upload_checkpoints",
}
_WITH_CALLER = {"serve": "serving.serve"}
_MAY_ASK = {"deliver": "deliver.deliver", "cache_verify": "verify.cache_verify"}
_WITH_PAYLOAD = {"put_code": "codes.put_code"}
_RAW = {
    "read_log": "run_verbs.read_log",
    "read_lines": "log_lines.read_lines",
    "read_objects": "checkpoints.read_objects",
    "read_code": "codes.read_code",
    "read_cache": "cache_verbs.read_cache",
}
"""Where verbs are done. A call imports what it needs and no more: it takes time, and stays in a supervisor's memory."""

_KNOWN = (_VERBS, _WITH_CALLER, _MAY_ASK, _WITH_PAYLOAD, _RAW)

_COPY_BYTES = 2**20


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    verb = sys.argv[-1]
    request: Mapping[str, Any] = {}
    try:
        request = read_request(sys.stdin.buffer)
        _dispatch(verb, request)
    except Failure as error:
        failure = error
    except OSError as error:
        failure = from_os_error(error, str(request.get("root", "/")))
    except KeyError as error:
        failure = Failure("request", f"the request for {verb} lacks {error}")
    else:
        return 0
    say({"error": failure.to_json()}, raw=verb in _RAW)
    return 1


def _dispatch(verb: str, request: Mapping[str, Any]) -> None:
    if verb in _RAW:
        _function(_RAW[verb])(request, _write)
    elif verb in _WITH_PAYLOAD:
        import tempfile  # heavy, and hardly any call needs it

        with tempfile.TemporaryFile() as payload:
            _copy(sys.stdin.buffer, payload)
            say({"result": _function(_WITH_PAYLOAD[verb])(request, emit, payload)})
    elif verb in _WITH_CALLER:
        say({"result": _function(_WITH_CALLER[verb])(request, emit, sys.stdin.buffer)})
    elif verb in _MAY_ASK:
        _converse(_function(_MAY_ASK[verb]), request)
    elif verb in _VERBS:
        sys.stdin.buffer.read()
        say({"result": _function(_VERBS[verb])(request, emit)})
    else:
        raise Failure("request", f"this node program knows no verb {verb!a}")


def _converse(act: Callable[..., Any], request: Mapping[str, Any]) -> None:
    """Do what needs its caller only where the mirror is a bucket, to which somebody has to sign links."""
    if (request.get("origin") or {}).get("type") != "bucket":
        sys.stdin.buffer.read()
        say({"result": act(request, emit, None)})
        return
    from trainctl.node.asking import Asking

    asking = Asking(sys.stdin.buffer, emit)
    result = act(request, asking.tell, asking)
    say({"result": result})


def load(verb: str) -> None:
    """Import what does the verb; nothing for one that there is not."""
    where = next((verbs[verb] for verbs in _KNOWN if verb in verbs), "")
    if where:
        _function(where)


def _function(where: str) -> Callable[..., Any]:
    """The function of a verb, from ``module.function``."""
    module, _, name = where.partition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"trainctl.node.{module}"), name)
    return found


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    for data in iter(lambda: source.read(_COPY_BYTES), b""):
        target.write(data)
    target.seek(0)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())

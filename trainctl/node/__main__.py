"""One call of the node program: a verb, one line of JSON, a result. See docs/reference/protocol.md."""

from __future__ import annotations

import importlib
import sys
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.base.failure import Failure, from_os_error
from trainctl.base.protocol.wire import emit, error_to_json, read_request, say
from trainctl.errors import TrainctlError

_VERBS = {
    "facts": "supervision.inspection.facts",
    "addresses": "supervision.inspection.reached_at",
    "inspect": "supervision.inspection.inspect",
    "vacancy": "supervision.inspection.vacancy",
    "pull_image": "containers.images.pull_image",
    "cache_evict": "cache.evict.cache_evict",
    "cache_verify": "cache.verify.cache_verify",
    "has_code": "cache.codes.has_code",
    "build_environment": "jobs.requirements.build_environment",
    "start": "supervision.starting.start",
    "give_secrets": "supervision.starting.give_secrets",
    "status": "supervision.run_verbs.status",
    "stop": "supervision.run_verbs.stop",
    "reorder": "supervision.run_verbs.reorder",
    "metrics": "metrics.samples.metrics",
    "past": "supervision.run_verbs.past",
    "remove": "supervision.run_verbs.remove",
    "release": "supervision.run_verbs.release",
    "forget": "supervision.collect.forget",
    "forget_cache": "supervision.collect.forget_cache",
    "make_cache": "training.verbs.make_cache",
    "remove_cache": "training.verbs.remove_cache",
    "cache_state": "training.verbs.cache_state",
    "clear_cache": "training.verbs.clear_cache",
    "checkpoints": "checkpoints.verbs.checkpoints",
    "remove_checkpoints": "checkpoints.verbs.remove_checkpoints",
    "upload_checkpoints": "checkpoints.verbs.upload_checkpoints",
    "object_get": "mirror.objects.object_get",
    "object_stat": "mirror.objects.object_stat",
    "object_list": "mirror.objects.object_list",
    "object_delete": "mirror.objects.object_delete",
    "object_sync": "mirror.objects.object_sync",
    "mirror_gc": "mirror.verbs.mirror_gc",
    "mirror_inventory": "mirror.verbs.mirror_inventory",
    "mirror_size": "mirror.verbs.mirror_size",
    "mirror_verify": "mirror.verbs.mirror_verify",
}
_WITH_CALLER = {
    "deliver": "cache.deliver.deliver",
    "serve": "cache.serve.serve",
    "serve_mirror": "cache.serve.serve_mirror",
    "object_put": "mirror.objects.object_put",
    "mirror_ingest": "mirror.verbs.mirror_ingest",
    "mirror_survey": "mirror.verbs.mirror_survey",
}
_WITH_PAYLOAD = {"put_code": "cache.codes.put_code"}
_RAW = {
    "read_lines": "runs.log_lines.read_lines",
    "read_objects": "checkpoints.verbs.read_objects",
    "read_code": "cache.codes.read_code",
    "read_cache": "training.verbs.read_cache",
}
"""Where verbs are done. A call imports what it needs and no more: it takes time, and stays in a supervisor's memory."""

_KNOWN = (_VERBS, _WITH_CALLER, _WITH_PAYLOAD, _RAW)

_COPY_BYTES = 2**20


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    verb = sys.argv[-1]
    request: Mapping[str, Any] = {}
    failure: Mapping[str, Any]
    try:
        request = read_request(sys.stdin.buffer)
        _dispatch(verb, request)
    except Failure as error:
        failure = error.to_json()
    except TrainctlError as error:
        failure = error_to_json(error)
    except OSError as error:
        failure = from_os_error(error, str(request.get("root", "/"))).to_json()
    except KeyError as error:
        failure = Failure("request", f"the request for {verb} lacks {error}").to_json()
    else:
        return 0
    say({"error": failure}, raw=verb in _RAW)
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
    elif verb in _VERBS:
        sys.stdin.buffer.read()
        say({"result": _function(_VERBS[verb])(request, emit)})
    else:
        raise Failure("request", f"this node program knows no verb {verb!r}")


def load(verb: str) -> None:
    """Import what does the verb; nothing for one that there is not."""
    where = next((verbs[verb] for verbs in _KNOWN if verb in verbs), "")
    if where:
        _function(where)


def _function(where: str) -> Callable[..., Any]:
    """The function of a verb, from ``package.module.function``."""
    module, _, name = where.rpartition(".")
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

"""Run one RPC method of the node program: request on stdin, response on stdout."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable, Mapping

from trainctl.base.filesystem.space import from_os_error
from trainctl.base.protocol.wire import emit, error_to_json, read_request, write_line
from trainctl.errors import NodeError, TrainctlError

_METHODS = {
    "facts": "supervision.inspection.facts",
    "addresses": "supervision.inspection.reached_at",
    "inspect": "supervision.inspection.inspect",
    "free_resources": "supervision.inspection.free_resources",
    "idle_shutdown": "supervision.idle_shutdown.idle_shutdown",
    "preflight": "supervision.preflight.preflight",
    "preflight_ports": "supervision.preflight.preflight_ports",
    "pull_image": "containers.images.pull_image",
    "cache_evict": "cache.eviction.cache_evict",
    "cache_verify": "cache.verification.cache_verify",
    "has_code": "cache.code_archives.has_code",
    "build_environment": "environment.requirements.build_environment",
    "start": "supervision.start_methods.start",
    "set_secrets": "supervision.start_methods.set_secrets",
    "status": "supervision.run_methods.status",
    "stop": "supervision.run_methods.stop",
    "extend_session": "supervision.run_methods.extend_session",
    "set_queue_order": "supervision.run_methods.set_queue_order",
    "metrics": "metrics.sampler.read_metrics",
    "points": "runs.points.read_points",
    "create_batch_run": "supervision.batch_methods.create_batch_run",
    "run_rank": "supervision.batch_methods.run_rank",
    "expect_stop": "supervision.batch_methods.expect_stop",
    "end_batch_run": "supervision.batch_methods.end_batch_run",
    "get_run_inputs": "supervision.run_methods.get_run_inputs",
    "find_run": "supervision.run_methods.find_run",
    "remove": "supervision.run_methods.remove",
    "release": "supervision.run_methods.release",
    "forget": "supervision.garbage_collection.forget",
    "forget_cache": "supervision.garbage_collection.forget_cache",
    "make_cache": "training_caches.make_cache",
    "remove_cache": "training_caches.remove_cache",
    "cache_state": "training_caches.cache_state",
    "clear_cache": "training_caches.clear_cache",
    "checkpoints": "checkpoints.methods.checkpoints",
    "checkpoint_listing": "checkpoints.methods.checkpoint_listing",
    "remove_checkpoints": "checkpoints.methods.remove_checkpoints",
    "upload_checkpoints": "checkpoints.methods.upload_checkpoints",
    "object_get": "mirror.object_get",
    "object_stat": "mirror.object_stat",
    "object_list": "mirror.object_list",
    "object_delete": "mirror.object_delete",
    "object_sync": "mirror.object_sync",
    "mirror_gc": "mirror.mirror_gc",
    "mirror_inventory": "mirror.mirror_inventory",
    "mirror_size": "mirror.mirror_size",
    "mirror_verify": "mirror.mirror_verify",
}
_CALLBACK_METHODS = {
    "deliver": "cache.delivery.deliver",
    "serve": "cache.server.serve",
    "serve_mirror": "cache.server.serve_mirror",
    "object_put": "mirror.object_put",
    "mirror_ingest": "mirror.mirror_ingest",
    "mirror_survey": "mirror.mirror_survey",
}
_PAYLOAD_METHODS = {"upload_code": "cache.code_archives.upload_code"}
_RAW_METHODS = {
    "read_lines": "runs.logs.read_lines",
    "read_objects": "checkpoints.methods.read_objects",
    "read_code": "cache.code_archives.read_code",
    "read_cache": "training_caches.read_cache",
}
"""Functions by method. Imported on demand, which saves start-up time and memory in supervisors."""

_ALL_METHODS = (_METHODS, _CALLBACK_METHODS, _PAYLOAD_METHODS, _RAW_METHODS)

_QUERIES = frozenset({"addresses", "facts", "free_resources", "inspect", "status"})
"""Methods that plan, status, nodes and reconcile call regularly; they don't count as use of a machine."""

_COPY_BYTES = 2**20


def main() -> int:
    """Run the method named by the last argument; exit code 1 if an error was reported."""
    os.umask(0o077)  # files are private; shared caches set modes explicitly
    method = sys.argv[-1]
    if method == "enter":  # standard input is the caller's; the request is an argument
        return int(_find_function("environment.entry.enter")(sys.argv[-2]))
    request: Mapping[str, Any] = {}
    failure: TrainctlError
    try:
        request = read_request(sys.stdin.buffer)
        root = request.get("root")
        if isinstance(root, str) and os.path.exists(f"{root}/idle_shutdown.json"):  # noqa: PTH110 - no import of pathlib
            mark_use = _find_function("supervision.idle_shutdown.mark_use")
            mark_use(root, counts=method not in _QUERIES)
        _dispatch(method, request)
    except TrainctlError as error:
        failure = error
    except OSError as error:
        failure = from_os_error(error, str(request.get("root", "/")))
    except KeyError as error:
        failure = NodeError(f"the request for {method} lacks {error}")
    else:
        return 0
    write_line({"error": error_to_json(failure)}, raw=method in _RAW_METHODS)
    return 1


def _dispatch(method: str, request: Mapping[str, Any]) -> None:
    if method in _RAW_METHODS:
        _find_function(_RAW_METHODS[method])(request, _write)
    elif method in _PAYLOAD_METHODS:
        import shutil  # slow to import
        import tempfile

        with tempfile.TemporaryFile() as payload:
            shutil.copyfileobj(sys.stdin.buffer, payload, _COPY_BYTES)
            payload.seek(0)
            write_line({"result": _find_function(_PAYLOAD_METHODS[method])(request, emit, payload)})
    elif method in _CALLBACK_METHODS:
        write_line(
            {"result": _find_function(_CALLBACK_METHODS[method])(request, emit, sys.stdin.buffer)}
        )
    elif method in _METHODS:
        sys.stdin.buffer.read()
        write_line({"result": _find_function(_METHODS[method])(request, emit)})
    else:
        raise NodeError(f"unknown method {method!r}")


def load(method: str) -> None:
    """Import the module of a method; ignore unknown methods."""
    path = next((methods[method] for methods in _ALL_METHODS if method in methods), "")
    if path:
        _find_function(path)


def _find_function(path: str) -> Callable[..., Any]:
    """Import the function at ``package.module.function`` below ``trainctl.node``."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(f"trainctl.node.{module}"), name)
    return function


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())

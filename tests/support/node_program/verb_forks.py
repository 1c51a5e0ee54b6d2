"""A process that does verbs of the node program in forks of itself, so that each can be killed or meet a full disk.

Reads lines ``{"verb", "request", "die", "supervisor", "full"}`` and answers each with a line: what the verb said, or ``{"killed": true}``.
``die``: the fork is killed before its n-th effect on the disk; ``supervisor``: so is the supervisor that it starts, and nobody else, and ``killed`` beside its ROOT then says so. ``full``: from its n-th write on there is no space.
A chunk is 4096 bytes here, so that small files have several.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from trainctl.base import listing

CHUNK_BYTES = 4096


class VerbForkServer:
    """The process, from the test's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.node_program.verb_forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def send(
        self,
        method: str,
        request: Mapping[str, Any],
        *,
        die: int = 0,
        supervisor: int = 0,
        full: int = 0,
    ) -> None:
        assert self._process.stdin is not None
        counts = {"die": die, "supervisor": supervisor, "full": full}
        message = {"method": method, "request": request, **counts}
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for what it said: ``result``, ``error`` or ``killed``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote died"
        document: dict[str, Any] = json.loads(line)
        assert "crash" not in document, document["crash"]
        return document

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _serve() -> None:
    listing.CHUNK_BYTES = CHUNK_BYTES
    os.fsync = lambda fd: None  # a process that is killed loses nothing that it wrote
    from trainctl.node.__main__ import _CALLBACK_METHODS, _METHODS, _find_function

    methods = {
        method: _find_function(where) for method, where in _METHODS.items()
    }  # once, not in each fork
    methods.update({method: _find_function(where) for method, where in _CALLBACK_METHODS.items()})
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                os.write(writer, json.dumps(_do(methods[order["method"]], order)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            data = stream.read()
        os.waitpid(child, 0)
        print(data.decode() or '{"killed": true}', flush=True)


def _do(method: Callable[..., Any], order: Mapping[str, Any]) -> dict[str, Any]:
    from tests.support.node_program.nodes import DEFAULT_REQUESTS, received_as
    from tests.support.projects.kill_at_effect import kill_at_effect, kill_supervisor_at_effect
    from trainctl.base.filesystem.space import from_os_error
    from trainctl.base.protocol.wire import error_to_json
    from trainctl.errors import TrainctlError

    if order["die"]:
        kill_at_effect(order["die"])
    if order["supervisor"]:
        root = Path(order["request"]["root"])
        kill_supervisor_at_effect(order["supervisor"], root.with_name("killed"))
    if order["full"]:
        _fill_up(order["full"])
    request, caller = received_as({**DEFAULT_REQUESTS.get(order["method"], {}), **order["request"]})
    with_caller = {"caller": caller} if "caller" in signature(method).parameters else {}
    try:
        return {"result": method(request, lambda event: None, **with_caller)}
    except TrainctlError as error:
        return {"error": error_to_json(error)}
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return {"crash": traceback.format_exc()}
        return {"error": error_to_json(from_os_error(error, order["request"]["root"]))}
    except Exception:  # noqa: BLE001 - whatever it is, the test must hear of it
        return {"crash": traceback.format_exc()}


def _fill_up(number: int) -> None:
    """Let the disk have no more space from the n-th call on that would need some."""
    left = number

    def fails(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **named)

        return wrapped

    for name in ("pwrite", "fsync", "link", "mkdir"):
        setattr(os, name, fails(getattr(os, name)))


if __name__ == "__main__":
    _serve()

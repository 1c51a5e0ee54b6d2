"""The mirror program: what a mirror does where it is kept, on a host. DESIGN.md, "Mirror on a host", has its verbs.

Standard library, Python 3.8, like the program on nodes, whose protocol it speaks. What is answered from what lies there is in
``answers``; what takes long, or asks the caller back, is in ``work`` and loaded when it is asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from trainctl.base.failure import Failure
from trainctl.base.protocol.errors import error_to_json
from trainctl.base.protocol.lines import read_request, say
from trainctl.base.syscalls import share_arenas
from trainctl.errors import StorageError, TrainctlError
from trainctl.weights.mirror.answers import VERBS, Answer, look
from trainctl.weights.mirror.directory import DirectoryMirror


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    try:
        say({"result": _done(sys.argv[-1], sys.stdin.buffer)})
    except TrainctlError as error:
        say({"error": error_to_json(error)})
    except Failure as error:
        say({"error": error.to_json()})
    except KeyError as error:
        say({"error": Failure("request", f"the request lacks {error}").to_json()})
    except OSError as error:
        failure = StorageError(f"the mirror: {error.strerror or error} ({error.filename})")
        say({"error": error_to_json(failure)})
    else:
        return 0
    return 1


def load(verb: str) -> None:
    """Import what does the verb."""
    if verb not in ("look", *VERBS):
        pass


def _done(verb: str, stream: BinaryIO) -> Answer:
    request = read_request(stream)
    mirror = DirectoryMirror(Path(request["root"]))
    if verb == "look":
        return look(mirror, request, stream)
    if verb in VERBS:
        return VERBS[verb](mirror, request)
    from trainctl.weights.mirror.work import do  # brings HTTP along

    share_arenas()  # mirroring has new threads for every part of a source: memory would grow with parts
    return do(verb, mirror, request, stream)

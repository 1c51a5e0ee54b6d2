"""The mirror program: what a mirror does where it is kept, on a host. DESIGN.md, "Mirror on a host", has its verbs.

Standard library, Python 3.8, like the program on nodes, whose protocol it speaks. What is answered from what lies there is here; what
takes long, or asks the caller back, is in ``work`` and loaded when it is asked for.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.errors import StorageError, TrainctlError
from trainctl.model.files import Listing
from trainctl.node.calls.protocol import read_request, say
from trainctl.node.system.addresses import serving_terms
from trainctl.node.system.failure import Failure
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import free_bytes
from trainctl.weights.mirror.forms import error_to_json, known_to_json, resolved_from_json
from trainctl.weights.mirror.known import kept, known, stored_bytes

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


def look(mirror: DirectoryMirror, request: Request) -> Answer:
    """What is known of sources, which of some listings are here, and how this host would serve others."""
    sources = [resolved_from_json(one) for one in request["sources"]]
    return {
        "known": [known_to_json(known(mirror, one)) for one in sources],
        "listings": [one for one in request["listings"] if mirror.has_listing(one)],
        "serving": serving_terms(),
        "free": free_bytes(mirror.root),
    }


def load_listing(mirror: DirectoryMirror, request: Request) -> Answer:
    """A listing's document, or null."""
    return _document(mirror.load_listing(request["listing"]))


def kept_listing(mirror: DirectoryMirror, request: Request) -> Answer:
    """The document of the listing that a source at a pin turned out to be, or null where not all of it is here."""
    return _document(kept(mirror, request["source"], request["pin"]))


def sources(mirror: DirectoryMirror, request: Request) -> Answer:
    """The rows of ``mirror list``."""
    return {"sources": [asdict(one) for one in mirror.sources()]}


def stored(mirror: DirectoryMirror, request: Request) -> Answer:
    """The bytes of all content."""
    return {"bytes": stored_bytes(mirror)}


def renew(mirror: DirectoryMirror, request: Request) -> Answer:
    """Resources' sources were used just now."""
    mirror.renew(request["lineage"], request["address"])
    return {}


def drop_reference(mirror: DirectoryMirror, request: Request) -> Answer:
    """A resource does not want its source any more."""
    return {"dropped": mirror.drop_reference(request["lineage"], request["address"])}


_VERBS: Mapping[str, Callable[[DirectoryMirror, Request], Answer]] = {
    "look": look,
    "load_listing": load_listing,
    "kept": kept_listing,
    "sources": sources,
    "stored": stored,
    "renew": renew,
    "drop_reference": drop_reference,
}


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
    if verb not in _VERBS:
        import trainctl.weights.mirror.work  # noqa: F401


def _done(verb: str, stream: BinaryIO) -> Answer:
    request = read_request(stream)
    mirror = DirectoryMirror(Path(request["root"]))
    if verb in _VERBS:
        return _VERBS[verb](mirror, request)
    from trainctl.weights.mirror.work import do  # brings HTTP along

    return do(verb, mirror, request, stream)


def _document(listing: Listing | None) -> Answer:
    return {"document": None if listing is None else listing.to_bytes().decode()}

"""What engines and registries say when an image can't be had, in the words that matter to its user."""

from __future__ import annotations

import re
from typing import Optional, Tuple

from trainctl.base.failure import Failure
from trainctl.node.containers.engines import Answer

_REASONS: Tuple[Tuple[str, str, str], ...] = (
    (
        r"unauthorized|authentication required|access.{0,12} denied|denied:|incorrect username|403 forbidden|401 ",
        "the registry refuses it",
        "Check the name; if it is private, image.docker_auth says who asks.",
    ),
    (
        r"manifest unknown|manifest.{0,80} not found|name unknown|name invalid|repository.{0,80} not found|not found: ",
        "the registry has no such image",
        "Check its name and tag.",
    ),
    (
        r"invalid reference format|invalid repository name",
        "that is no name of an image",
        "Write REGISTRY/NAME:TAG.",
    ),
    (
        r"no space left",
        "there is no space left for it on the node's disk",
        "Free some, then try again.",
    ),
)
_UNREACHABLE = re.compile(
    r"no such host|name resolution|connection refused|connection reset|i/o timeout|timed? ?out|deadline exceeded|"
    r"network is unreachable|no route to host|unexpected eof|server misbehaving|50[0234] |too ?many ?requests",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(?:Error(?: response from daemon)?: |FATAL: +|time=\S+ level=\S+ msg=)|"
    r"(?:initializing source|unable to copy from source|reading manifest|pinging container registry) \S+(?: in \S+)?: ",
    re.IGNORECASE,
)
_LONGEST = 300


def unreachable(answer: Answer) -> bool:
    """Whether no registry answered, so that nobody knows what it would have said."""
    return _reason(answer.complaint) is None and bool(_UNREACHABLE.search(answer.complaint))


def refusal(reference: str, answer: Answer) -> Failure:
    """The error for an image that can't be pulled: what is wrong, what to do, and the engine's own words in short."""
    complaint = answer.complaint
    words = _NOISE.sub("", complaint)[:_LONGEST]
    found = _reason(complaint)
    if found is not None:
        return Failure("failed", f"image {reference}: {found[0]}", f"{found[1]} ({words})")
    if unreachable(answer):
        summary = f"image {reference}: its registry can't be reached from the node"
        return Failure("failed", summary, words)
    return Failure("failed", f"image {reference} can't be pulled", words)


def _reason(complaint: str) -> Optional[Tuple[str, str]]:
    for pattern, summary, hint in _REASONS:
        if re.search(pattern, complaint, re.IGNORECASE):
            return summary, hint
    return None

"""What a run's own process becomes, on the host or in a container."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Tuple

from trainctl.node.mount import Mount


def nothing() -> None:
    """For launches that leave nothing behind."""


class Launch(NamedTuple):
    """A program with its variables, to be executed behind private ``mounts`` if there are any.

    ``finish`` is called once after each attempt, whatever its end was, and removes what only this kind of launch leaves.
    """

    argv: Tuple[str, ...]
    variables: Mapping[str, str]
    mounts: Tuple[Mount, ...] = ()
    finish: Callable[[], None] = nothing

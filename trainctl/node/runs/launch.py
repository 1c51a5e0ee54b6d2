"""What a run's own process becomes, on the host or in a container."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Tuple

from trainctl.node.runs.mount import Mount


def nothing() -> None:
    """For launches that leave nothing behind."""


def not_refused() -> str:
    """For launches that are refused before they are executed, or not at all."""
    return ""


class Launch(NamedTuple):
    """A program with its variables, to be executed behind private ``mounts`` if there are any.

    ``finish`` is called after each attempt, whatever its end was, and removes what only this kind of launch leaves; twice does no harm.
    ``refused`` says after the end why no command was begun, empty if one was.
    """

    argv: Tuple[str, ...]
    variables: Mapping[str, str]
    mounts: Tuple[Mount, ...] = ()
    finish: Callable[[], None] = nothing
    refused: Callable[[], str] = not_refused

"""Moves of the complete state to another place, which can be interrupted and repeated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from trainctl.errors import AppendConflict, StateError, UsageError
from trainctl.ledger.commit import moved_error
from trainctl.ledger.edits import refuse_open_intents
from trainctl.ledger.entries import from_json
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.reducer import reduce_entries
from trainctl.ledger.state import State


def migrate(old: Ledger, new: Ledger) -> int:
    """Move the state from ``old`` to ``new``, which must be empty; return the number of entries.

    First ``old`` refuses all further appends, then one append copies all entries. Repeating an interrupted move
    completes it. Raises LockHeld if changes are in progress, StateError if ``new`` has another state.
    """
    in_use = bool(list(new.log.replay()))
    state = old.move_to(new.url, lambda state: _check(state, old, new, in_use=in_use))
    replayed = list(old.log.replay())
    moves = (at for at, entry in enumerate(replayed) if entry.get("type") == "moved")
    entries = replayed[: max(moves)]
    if not in_use:
        with suppress(AppendConflict):  # another process copied the same entries
            new.log.append(0, entries)
    copied = list(new.log.replay())[: len(entries)]
    if reduce_entries(State(), map(from_json, copied)) != replace(state, position=0, moved_to=""):
        raise _not_empty_error(new)
    new.state()
    new.flush()
    return len(entries)


def abort_migration(old: Ledger, open_new: Callable[[str], Ledger]) -> str:
    """Undo a move, so that ``old`` is used again; return the URL of the other place.

    A copy there gets a pointer back. Raises StateError if it was changed since.
    """
    url = old.state(even_moved=True).moved_to
    if not url:
        raise UsageError(f"the state at {old.url} has not moved", "Nothing was changed.")
    new = open_new(url)

    def check(state: State) -> None:
        if state.position > 1 and not state.moved_to:
            raise StateError(
                f"the state at {url} was changed since the move",
                "Use it, or move it back: trainctl --state URL state migrate OTHER_URL.",
                code="state-not-empty",
            )

    if list(new.log.replay()):
        new.move_to(old.url, check)
    old.move_to("", lambda _: None)
    return url


def _check(state: State, old: Ledger, new: Ledger, *, in_use: bool) -> None:
    """Raise an error if the state can't move."""
    if old.url == new.url:
        raise UsageError(f"the state is already at {new.url}", "Use another URL.")
    if state.moved_to not in ("", new.url):
        raise moved_error(state.moved_to)
    if not state.lineage:
        raise UsageError(f"there is no state at {old.url}", f"Write `state: {{url: {new.url}}}`.")
    if in_use and not state.moved_to:
        raise _not_empty_error(new)
    refuse_open_intents(state, state.open_intents)


def _not_empty_error(new: Ledger) -> StateError:
    return StateError(
        f"there is another state at {new.url}",
        "Use a URL where no state is. Nothing was changed there.",
        code="state-not-empty",
    )

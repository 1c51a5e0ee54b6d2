"""Changes of the state by hand: rename, remove, push, and move it to another place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import AppendConflict, StateError, UsageError
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.commit import moved_error
from trainctl.ledger.entries import CreatedEntry, Entry, OutcomeEntry, PushedEntry, from_json
from trainctl.ledger.leases import lock_held_error
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.planned_edits import StateEdits
from trainctl.ledger.reducer import FORGET, reduce_entries
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind


def edit(ledger: Ledger, edits: StateEdits, plan: str = "") -> None:
    """Rename and import what is left to do; LockHeld if one of the resources is being changed."""

    def build(state: State) -> list[Entry]:
        entries = edits.entries(state, ledger.header, plan)
        if entries:
            refuse_open_intents(state, [*edits.renames, *edits.addresses])
        return entries

    ledger.append(build)


def remove(ledger: Ledger, addresses: Sequence[Address], *, dry_run: bool = False) -> None:
    """Remove resources from the state, without touching what they stand for.

    The runs of a removed job can still be inspected. Raises UsageError if a resource isn't there, or others need it.
    """

    def build(state: State) -> list[Entry]:
        refuse_open_intents(state, addresses)
        for address in addresses:
            if address not in state.resources:
                raise not_in_state_error(address)
        for recorded in state.resources.values():
            needed = [address for address in recorded.depends_on if address in addresses]
            if needed and recorded.address not in addresses:
                raise UsageError(
                    f"{recorded.address} needs {needed[0]}",
                    f"Remove both with one command, or first: trainctl state rm {recorded.address.shell_quoted}.",
                    address=str(needed[0]),
                )
        if dry_run:
            return []
        return [
            OutcomeEntry(
                ledger.header(), "", item, None, FORGET if item.kind is Kind.JOB else "remove"
            )
            for item in addresses
        ]

    ledger.append(build)


def push(ledger: Ledger, pushed: Mapping[str, Any]) -> State:
    """Replace the state by one in the form of ``state pull``; return it.

    Raises StateError for another lineage or an older serial. An empty place takes over the lineage.
    """
    new = state_from_json(pushed)

    def build(state: State) -> list[Entry]:
        refuse_open_intents(state, state.open_intents)
        if state.lineage and state.lineage != new.lineage:
            raise _not_pushed_error(
                f"its lineage is {new.lineage}, not {state.lineage}",
                "It is the state of another project, or of another place.",
            )
        if new.serial <= state.serial and state.lineage:
            if {**state_to_json(state), "position": 0} == {**state_to_json(new), "position": 0}:
                return []
            raise _not_pushed_error(
                f"its serial {new.serial} is not newer than {state.serial}",
                "Pull the state again, repeat the change and increase the serial.",
            )
        created = [] if state.lineage else [CreatedEntry(ledger.header(), new.lineage)]
        return [*created, PushedEntry(ledger.header(), pushed)]

    return ledger.append(build)


def refuse_open_intents(state: State, addresses: Iterable[Address]) -> None:
    """Raise LockHeld if one of the addresses is being changed."""
    for address in addresses:
        if address in state.open_intents:
            raise lock_held_error(state.open_intents[address])


def not_in_state_error(address: Address) -> UsageError:
    """Return the error for an address that isn't recorded."""
    return UsageError(
        f"{address} is not in the state",
        "Run trainctl state list for the resources in the state.",
        code="not-in-state",
    )


def _not_pushed_error(why: str, detail: str) -> StateError:
    return StateError(
        f"the state was not replaced: {why}", f"{detail} Nothing was changed.", code="push-refused"
    )


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

"""Edits of the state that a manifest asks for: renamed resources and imported runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.ledger.entries import Entry, EntryHeader, OutcomeEntry, RenamedEntry
from trainctl.ledger.reducer import reduce_entries
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address

IMPORT = "import"
"""Action of an outcome that records an existing resource."""


@dataclass(frozen=True, slots=True)
class StateEdits:
    """New addresses of resources, and records of existing ones; applied in one append."""

    renames: Mapping[Address, Address] = field(default_factory=dict)
    imports: tuple[RecordedResource, ...] = ()

    def left(self, state: State) -> StateEdits:
        """Return those that the state doesn't have yet."""
        known = state.resources
        return StateEdits(
            {old: new for old, new in self.renames.items() if old in known},
            tuple(record for record in self.imports if record.address not in known),
        )

    def entries(
        self, state: State, header: Callable[[], EntryHeader], plan: str = ""
    ) -> list[Entry]:
        """Return the entries for those that the state doesn't have yet."""
        left = self.left(state)
        renamed: list[Entry] = [RenamedEntry(header(), left.renames, plan)] if left.renames else []
        return renamed + [
            OutcomeEntry(header(), "", record.address, record, IMPORT, plan)
            for record in left.imports
        ]

    def applied_to(self, state: State) -> State:
        """Return the state with the edits."""
        entries = self.entries(state, lambda: EntryHeader("", 0.0, ""))
        return reduce_entries(state, entries) if entries else state

    @property
    def addresses(self) -> dict[Address, str]:
        """What happens to each address, for plans."""
        return {
            **{new: f"moved from {old}" for old, new in self.renames.items()},
            **{
                record.address: f"imported with run {record.outputs['runs'][-1]['id']}"
                for record in self.imports
            },
        }


NO_EDITS = StateEdits()


def plan_edits(entries: Iterable[Entry], plan: str) -> StateEdits:
    """Return the edits that were applied under a plan."""
    renames: dict[Address, Address] = {}
    imports: list[RecordedResource] = []
    for entry in entries:
        if isinstance(entry, RenamedEntry) and entry.plan == plan:
            renames.update(entry.addresses)
        elif isinstance(entry, OutcomeEntry) and (entry.action, entry.plan) == (IMPORT, plan):
            imports += [entry.recorded] if entry.recorded else []
    return StateEdits(renames, tuple(imports))

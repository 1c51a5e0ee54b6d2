"""Replaying entries to a state, in linear time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from trainctl.base.lazy_dataclass import replace
from trainctl.ledger.codec import state_from_json
from trainctl.ledger.entries import (
    ApprovalEntry,
    CommentEntry,
    CreatedEntry,
    Entry,
    FailureEntry,
    LeaseRenewedEntry,
    MovedEntry,
    OutcomeEntry,
    PushedEntry,
    RefreshEntry,
    RenamedEntry,
    UnlockEntry,
)
from trainctl.ledger.renaming import renamed_record
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind

Json = Mapping[str, Any]


def merge_outputs(outputs: Json, observed: Json) -> Json:
    """Update outputs with observed ones; ``runs`` and ``run`` are merged by id.

    Returns the same object if nothing changes.
    """
    changes = {name: value for name, value in observed.items() if name not in ("run", "runs")}
    runs = list(outputs.get("runs") or ())
    for run in (*(observed.get("runs") or ()), observed.get("run")):
        if isinstance(run, Mapping):
            runs = _with_run(runs, run)
    if runs:
        changes["runs"] = runs
    if all(name in outputs and outputs[name] == value for name, value in changes.items()):
        return outputs
    return {**outputs, **changes}


def newest_run(outputs: Json) -> Json | None:
    """Return the record of the newest run, if any."""
    runs = outputs.get("runs")
    return runs[-1] if isinstance(runs, list) and runs and isinstance(runs[-1], Mapping) else None


def _with_run(runs: list[Any], run: Json) -> list[Any]:
    for index, known in enumerate(runs):
        if isinstance(known, Mapping) and known.get("id") == run.get("id"):
            generations = run.get("generation") or 0, known.get("generation") or 0
            is_older = generations[0] < generations[1]
            if generations[0] == generations[1]:  # an end is final within a generation
                is_older = known.get("ended_at") is not None and run.get("ended_at") is None
            if is_older:
                return runs
            if run.get("generation") == known.get("generation") and known.get("stop_requested"):
                run = {**run, "stop_requested": True}  # an earlier observation may lack it
            return [*runs[:index], run, *runs[index + 1 :]]
    return [*runs, run]


FORGET = "forget"
"""Action of an outcome that removes only the record."""


class StateReducer:
    """Mutable state of one thread; ``state()`` returns it as an immutable value, and the next change copies.

    ``position`` is that of the next append; ``entries`` counts entries since the start or the last snapshot.
    """

    def __init__(self, start: State = State()) -> None:  # noqa: B008 (immutable)
        self.entries = 0
        self.position = start.position
        self._load(start)

    def _load(self, start: State) -> None:
        self.lineage = start.lineage
        self.serial = start.serial
        self.resources: dict[Address, RecordedResource] = dict(start.resources)
        self.open: dict[Address, Intent] = dict(start.open_intents)
        self.versions: dict[Address, int] = dict(start.versions)
        self.plans: dict[Address, tuple[str, int]] = dict(start.plans)
        self.orphaned_intents: dict[Address, tuple[Intent, ...]] = dict(start.orphaned_intents)
        self.approved: dict[Address, tuple[str, str]] = dict(start.approved)
        self.forgotten: dict[Address, RecordedResource] = dict(start.forgotten)
        self.moved_to = start.moved_to
        self._by_id = {intent.id: address for address, intent in self.open.items()}
        self._state: State | None = None

    def apply(self, entry: Entry) -> bool:
        """Apply an entry; return False if it changed nothing, as for a lost lease."""
        self.entries += 1
        if self.moved_to and not isinstance(entry, MovedEntry):
            return False
        self._leave_state()
        changed: bool = _RULES[type(entry)](self, entry)
        return changed

    def move_to(self, position: int) -> None:
        """Set the position of the next append."""
        if position != self.position:
            self._leave_state()
            self.position = position

    def _leave_state(self) -> None:
        """Continue on copies of the mappings, if a state has them."""
        if self._state is not None:
            self._load(self._state)

    def open_by_id(self, intent: str) -> Intent | None:
        """Return the open intent with this id."""
        address = self._by_id.get(intent)
        return None if address is None else self.open[address]

    def state(self) -> State:
        """Return the state, which never changes; the same object until an entry is applied."""
        if self._state is None:
            self._state = State(
                lineage=self.lineage,
                serial=self.serial,
                position=self.position,
                resources=MappingProxyType(self.resources),
                open_intents=MappingProxyType(self.open),
                versions=MappingProxyType(self.versions),
                plans=MappingProxyType(self.plans),
                orphaned_intents=MappingProxyType(self.orphaned_intents),
                approved=MappingProxyType(self.approved),
                forgotten=MappingProxyType(self.forgotten),
                moved_to=self.moved_to,
            )
        return self._state

    def find_record(self, address: Address) -> RecordedResource | None:
        """Like ``State.find_record``, without copying the state."""
        return self.resources.get(address) or self.forgotten.get(address)

    def moved(self, address: Address, seen: int, plan: str) -> bool:
        """Like ``State.moved``, without copying the state."""
        return State(versions=self.versions, plans=self.plans).moved(address, seen, plan)

    def _created(self, entry: CreatedEntry) -> bool:
        if self.lineage:
            return False
        self.lineage = entry.lineage
        return True

    def _intent(self, entry: Intent) -> bool:
        if entry.id in self._by_id:
            return False
        before = self._close(entry.address)
        if before is not None:
            self._add_orphan(before)
        orphans = self.orphaned_intents.get(entry.address, ())
        self._set_orphans(entry.address, tuple(i for i in orphans if i.key != entry.key))
        self.open[entry.address] = entry
        self._by_id[entry.id] = entry.address
        return True

    def _renewed(self, entry: LeaseRenewedEntry) -> bool:
        addresses = [self._by_id[intent] for intent in entry.intents if intent in self._by_id]
        for address in addresses:
            intent = self.open[address]
            self.open[address] = replace(
                intent, renewals=intent.renewals + 1, renewed=entry.header.time
            )
        return bool(addresses)

    def _outcome(self, entry: OutcomeEntry) -> bool:
        # A failed change is not applied, and a plan with an import is made for the version after it.
        by_plan = bool(entry.intent or entry.digest)
        plan = entry.plan if by_plan and not entry.error else ""
        if entry.intent and self._by_id.get(entry.intent) != entry.address:
            return False
        if by_plan:
            self._close(entry.address)
        self._set_orphans(entry.address, ())
        self.approved.pop(entry.address, None)
        version = self._count(entry.address, plan)
        if entry.recorded is None:
            self._remove(entry)
        else:
            recorded = entry.recorded
            self.resources[entry.address] = (
                recorded if recorded.version == version else replace(recorded, version=version)
            )
            self.forgotten.pop(entry.address, None)
        return True

    def _failed(self, entry: FailureEntry) -> bool:
        if self._by_id.get(entry.intent) != entry.address:
            return False
        intent = self._close(entry.address)
        self._add_orphan(None if entry.waits else intent)
        return True

    def _unlocked(self, entry: UnlockEntry) -> bool:
        if self._by_id.get(entry.intent) != entry.address:
            return False
        intent = self._close(entry.address)
        self._add_orphan(None if intent is None else replace(intent, released=True))
        version = self._count(entry.address, "")
        recorded = self.resources.get(entry.address)
        if recorded is not None:
            self.resources[entry.address] = replace(recorded, version=version)
        return True

    def _refreshed(self, entry: RefreshEntry) -> bool:
        recorded = self.find_record(entry.address)
        if recorded is None:
            return False
        outputs = merge_outputs(recorded.outputs, entry.outputs)
        if outputs is recorded.outputs:
            return False
        records = self.resources if entry.address in self.resources else self.forgotten
        records[entry.address] = replace(recorded, outputs=outputs)
        return True

    def _approved(self, entry: ApprovalEntry) -> bool:
        self.approved.update(
            {address: (values, entry.plan) for address, values in entry.changes.items()}
        )
        return bool(entry.changes)

    def _moved(self, entry: MovedEntry) -> bool:
        self.moved_to = entry.to
        return True

    def _renamed(self, entry: RenamedEntry) -> bool:
        names = {old: new for old, new in entry.addresses.items() if old in self.resources}
        if not names:
            return False
        orphans = {new: self.orphaned_intents.pop(old, ()) for old, new in names.items()}
        for address in {*names, *names.values()}:
            self.approved.pop(address, None)
            self.forgotten.pop(address, None)
        versions = {
            new: max(self.versions.get(old, 0), self.versions.get(new, 0)) + 1
            for old, new in names.items()
        }
        records = [renamed_record(recorded, names) for recorded in self.resources.values()]
        self.resources = {
            record.address: replace(record, version=versions.get(record.address, record.version))
            for record in records
        }
        for old, new in names.items():
            self._set_version(old, versions[new])
            self._set_version(new, versions[new])
            self._set_orphans(new, tuple(replace(item, address=new) for item in orphans[new]))
        self.serial += 1
        return True

    def _pushed(self, entry: PushedEntry) -> bool:
        """Replace the state; all addresses count as changed, and open changes as failed."""
        pushed, versions = state_from_json(entry.state), self.versions
        attempts = {address: pushed.attempts(address)[::-1] for address in pushed.open_intents}
        orphans = {**pushed.orphaned_intents, **attempts}
        unlocked = replace(pushed, open_intents={}, orphaned_intents=orphans)
        self._load(replace(unlocked, lineage=self.lineage, moved_to=""))
        for address in versions.keys() | pushed.versions.keys() | pushed.resources.keys():
            version = max(versions.get(address, 0), pushed.versions.get(address, 0)) + 1
            self._set_version(address, version)
            if address in self.resources:
                self.resources[address] = replace(self.resources[address], version=version)
        return True

    def _set_version(self, address: Address, version: int) -> None:
        self.versions[address], self.plans[address] = version, ("", version - 1)

    def _remove(self, entry: OutcomeEntry) -> None:
        record = self.find_record(entry.address) if entry.action == FORGET else None
        self.resources.pop(entry.address, None)
        self.forgotten.pop(entry.address, None)
        if record is not None:
            self.forgotten[entry.address] = record
        elif entry.address.kind is Kind.CLUSTER:  # forgotten resources on it are gone, too
            for address, forgotten in [*self.forgotten.items()]:
                if entry.address in forgotten.depends_on:
                    del self.forgotten[address]

    def _close(self, address: Address) -> Intent | None:
        intent = self.open.pop(address, None)
        if intent is not None:
            del self._by_id[intent.id]
        return intent

    def _add_orphan(self, intent: Intent | None) -> None:
        if intent is not None:
            others = (
                i for i in self.orphaned_intents.get(intent.address, ()) if i.key != intent.key
            )
            self._set_orphans(intent.address, (*others, intent))

    def _set_orphans(self, address: Address, intents: tuple[Intent, ...]) -> None:
        if intents:
            self.orphaned_intents[address] = intents
        else:
            self.orphaned_intents.pop(address, None)

    def _count(self, address: Address, plan: str) -> int:
        """Count an outcome or unlock, and note its plan."""
        version = self.versions.get(address, 0)
        if plan == "" or self.plans.get(address, ("", 0))[0] != plan:
            self.plans[address] = (plan, version)
        self.versions[address] = version + 1
        self.serial += 1
        return version + 1


_RULES: dict[type, Callable[[StateReducer, Any], bool]] = {
    CreatedEntry: StateReducer._created,
    Intent: StateReducer._intent,
    LeaseRenewedEntry: StateReducer._renewed,
    OutcomeEntry: StateReducer._outcome,
    FailureEntry: StateReducer._failed,
    UnlockEntry: StateReducer._unlocked,
    RefreshEntry: StateReducer._refreshed,
    CommentEntry: lambda _reducer, _entry: False,
    ApprovalEntry: StateReducer._approved,
    MovedEntry: StateReducer._moved,
    RenamedEntry: StateReducer._renamed,
    PushedEntry: StateReducer._pushed,
}


def reduce_entries(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after the entries; its position stays."""
    reducer = StateReducer(state)
    for entry in entries:
        reducer.apply(entry)
    return reducer.state()

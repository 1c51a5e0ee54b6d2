"""Appends: redaction of entries, and snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import SFT, begin, ledger_on, record
from trainctl.base.json import JsonObject
from trainctl.errors import PermissionDenied, StateError
from trainctl.ledger.commit import SNAPSHOT_APPENDS, redact_entries
from trainctl.ledger.ledger import IntentRequest
from trainctl.model.address import Address
from trainctl.model.redaction import MASK, Redactor

_awkward = st.text(alphabet=st.sampled_from("aZ09 \"'\\/\n\té\u2028%&=+"), max_size=12)
_secrets = _awkward.map(lambda text: f"s3cr3t{text}t3rc3s")


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [item for pair in value.items() for part in pair for item in _strings(part)]
    if isinstance(value, list):
        return [item for each in value for item in _strings(each)]
    return [value] if isinstance(value, str) else []


@given(secret=_secrets, spelled=st.sampled_from(["plain", "repr"]), around=_awkward)
def test_no_secret_comes_through(secret: str, spelled: str, around: str) -> None:
    """As it is or as Python writes it, in values and names, between characters that JSON escapes and others."""
    redactor = Redactor()
    redactor.register(secret)
    spelled = {"plain": secret, "repr": repr(secret)[1:-1]}[spelled]
    entry = {"id": "1", "inputs": {"a": [f"{around}{spelled}{around}"], spelled: (around, 1, None)}}

    strings = _strings(redact_entries([{"id": "0"}, entry], redactor.redact))

    assert all(redactor.redact(text) == text for text in strings)
    assert MASK in "".join(strings)


@given(text=_awkward)
def test_what_holds_no_secret_is_let_in_as_it_is(text: str) -> None:
    redactor = Redactor()
    redactor.register("hunter2hunter2")
    entry = {"id": "1", "inputs": {text: [text, 1.5, None, True]}}

    assert redact_entries([entry], redactor.redact)[0] == entry


def test_what_is_let_in_is_not_what_was_handed_over() -> None:
    """Nobody who changes a value afterwards changes what the log and this process go by."""
    inner = {"a": ["b"]}
    entry = {"id": "1", "inputs": inner}

    clean = redact_entries([entry], Redactor().redact)[0]
    inner["a"].append("c")

    assert clean == {"id": "1", "inputs": {"a": ["b"]}}


def test_a_name_of_the_structure_is_never_masked() -> None:
    """A secret in an address would make the entry another's: it is refused, and the error doesn't show it."""
    redactor = Redactor()
    redactor.register("hunter2hunter2")

    with pytest.raises(PermissionDenied) as raised:
        redact_entries([{"id": "1", "address": "job.hunter2hunter2"}], redactor.redact)

    assert "hunter2" not in str(raised.value)


def test_snapshots_are_taken_now_and_then() -> None:
    """After enough appends a new reader starts at a snapshot, and folds to the same state and the same history."""
    log = MemoryLog()
    ledger = ledger_on(log)
    for number in range(SNAPSHOT_APPENDS):
        address = Address.parse(f"job.j{number % 7}")
        intent = begin(ledger, address, plan=f"p{number % 3}")
        if number % 5 == 4:
            ledger.fail(intent, "no")
        else:
            ledger.finish(intent, record(address))
    fresh = ledger_on(log)
    assert log.read().snapshot is not None
    assert len(log.read().entries) < 250
    assert fresh.state() == ledger.state()
    assert len(fresh.history()) == SNAPSHOT_APPENDS


def test_who_appended_much_leaves_little_to_read() -> None:
    """In few appends or many; who appended little takes no snapshot, nor does who took one already."""
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.record([(IntentRequest(SFT, "create", "local", "k", {}), record())])
    ledger.flush()
    assert log.read().snapshot is None
    many = [Address.parse(f"project.p{number}") for number in range(500)]
    ledger.record([(IntentRequest(job, "create", "local", "k", {}), record(job)) for job in many])
    ledger.flush()
    data = log.read()
    assert (data.snapshot is not None, data.entries) == (True, ())
    assert ledger_on(log).state() == ledger.state()
    ledger.note("little")
    ledger.flush()
    assert len(log.read().entries) == 1


class _WithoutSnapshots(MemoryLog):
    def snapshot(self, position: int, state: JsonObject) -> None:
        raise StateError("no space left")


def test_a_snapshot_that_fails_harms_no_append() -> None:
    log = _WithoutSnapshots()
    ledger = ledger_on(log)
    for number in range(SNAPSHOT_APPENDS + 5):
        ledger.note(str(number))
    assert log.read().snapshot is None
    assert ledger_on(log).state().position == SNAPSHOT_APPENDS + 5

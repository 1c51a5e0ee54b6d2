"""The log as rows for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import PREP, SFT, begin, elsewhere, ledger_on, record
from trainctl.errors import UsageError
from trainctl.ledger.history import plan_outcomes, state_at
from trainctl.ledger.leases import current_holder
from trainctl.ledger.ledger import IntentRequest


def test_everything_that_happened_is_a_row() -> None:
    """Outcomes, failures, releases, looks and notes, the oldest first; what was fenced off is none."""
    log = MemoryLog()
    ledger = ledger_on(log, holder=elsewhere("ann"))
    ledger.finish(
        begin(ledger, reason="why"), record(outputs={"runs": [{"id": "r1", "status": "RUNNING"}]})
    )
    ledger.observe(SFT, {"run": {"id": "r1", "status": "COMPLETED"}})
    ledger.fail(begin(ledger, PREP), "no")
    ledger.finish(begin(ledger, PREP), record(PREP), error="half")
    ledger.release(begin(ledger, PREP).id)
    ledger.finish(begin(ledger), None)
    ledger.note("hello")
    rows = [(r.serial, r.address, r.action, r.reason, r.run, r.status) for r in ledger.history()]
    assert rows == [
        (1, "job.sft", "create", "why", "r1", "RUNNING"),
        (1, "job.sft", "observe", None, "r1", "COMPLETED"),
        (1, "job.prep", "create", None, None, "failed"),
        (2, "job.prep", "create", None, None, "failed"),
        (3, "job.prep", "release", None, None, "released"),
        (4, "job.sft", "create", None, None, "removed"),
        (4, None, "hello", None, None, "commented"),
    ]
    assert {row.actor for row in ledger.history()} == {"ann@far"}
    assert [row.serial for row in ledger.history(SFT)] == [1, 1, 4]


def test_what_a_killed_apply_left_is_at_the_end() -> None:
    """Whoever is known to have died was interrupted; the others may be at it still. A live run is one that started."""
    log = MemoryLog()
    ledger = ledger_on(log)
    run = {"id": "r1", "status": "TRAINING_JOB_RUNNING"}
    ledger.finish(begin(ledger), record(outputs={"runs": [run]}))
    gone = replace(current_holder(), started=1)
    begin(ledger_on(log, holder=gone), PREP)
    begin(ledger_on(log, holder=elsewhere("ann")))

    assert [(row.address, row.status) for row in ledger.history()] == [
        ("job.sft", "started"),
        ("job.prep", "interrupted"),
        ("job.sft", "in progress"),
    ]
    assert [row.status for row in ledger.history(PREP)] == ["interrupted"]
    assert ledger.last_actor(SFT) == ledger.header().actor


def test_rows_name_plan_commit_and_pipeline() -> None:
    by = replace(elsewhere("ann"), commit="c0ffee1", pipeline="https://ci/1")
    log = MemoryLog()
    ledger = ledger_on(log, holder=by)
    ledger.finish(begin(ledger, plan="sha256:p"), record())
    ledger.note("hello")
    done, noted = ledger_on(log).history()
    assert (done.commit, done.pipeline, done.plan) == (by.commit, by.pipeline, "sha256:p")
    assert (noted.actor, noted.commit, noted.plan) == ("ann@far", by.commit, None)
    assert all(entry.get("commit", by.commit) == by.commit for entry in log.read().entries)


def test_outcomes_of_a_plan() -> None:
    """The newest of each address, with its error; none where something else came later."""
    ledger = ledger_on(MemoryLog())
    for plan in ("p", "q", "p"):
        ledger.finish(begin(ledger, plan=plan), record())
    ledger.finish(begin(ledger, PREP, plan="p"), record(PREP), error="half")
    assert {a: failed for a, (_, failed) in plan_outcomes(ledger.entries(), "p").items()} == {
        SFT: None,
        PREP: {"x": 1},
    }
    assert plan_outcomes(ledger.entries(), "q") == {}
    assert ledger.state().plans[SFT] == ("p", 2)
    assert ledger.state().plans[PREP] == ("", 0)


def test_a_record_of_a_plan_is_one_entry() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    start = IntentRequest(SFT, "create", "local", "k", {"digest": "d"}, "p", "a reason")
    ledger.record([(start, record())])
    (row,) = ledger.history()
    assert (row.plan, row.reason, row.action, row.status) == ("p", "a reason", "create", "done")
    assert plan_outcomes(ledger.entries(), "p") == {SFT: ("d", None)}
    assert ledger.state().plans[SFT] == ("p", 0)
    assert len([*log.replay()]) == 2


def test_states_of_the_past() -> None:
    ledger = ledger_on(MemoryLog())
    for number in range(3):
        ledger.finish(begin(ledger), record(outputs={"n": number}))
    assert state_at(ledger.entries(), 2).resources[SFT].outputs == {"n": 1}
    assert state_at(ledger.entries(), 0).resources == {}
    with pytest.raises(UsageError, match="serial 9 is not in the state") as caught:
        state_at(ledger.entries(), 9)
    assert "to 3" in caught.value.detail

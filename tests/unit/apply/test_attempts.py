"""Attempts of which nobody recorded how they ended: carried on, or undone before something else is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.projects.fake_engine import SFT, FakeEngine, change
from tests.support.storage.ledgers import dead_here, ledger_on
from trainctl.apply.engine import ApplyPermissions
from trainctl.apply.step import DeferredStep, MayStop
from trainctl.errors import (
    NodeUnreachable,
    TrainctlError,
)
from trainctl.ledger.ledger import IntentRequest
from trainctl.ledger.state import Intent, Lookup
from trainctl.model.action import Action, ActionReason


@pytest.fixture
def desk() -> FakeEngine:
    """An empty state and a willing handler."""
    return FakeEngine()


def test_an_attempt_begun_since_the_plan_is_carried_on(desk: FakeEngine) -> None:
    """Though the plan knows nothing of it: undone and made again, a run would have run twice."""
    desk.attempt("since", dead_here())
    assert desk.run(change(resumes=None)).complete
    assert desk.fake.calls == ["make job.sft since"]
    assert desk.ledger.state().resources[SFT].key == "since"


def test_a_run_that_was_asked_for_carries_on_nobody_elses(desk: FakeEngine) -> None:
    desk.attempt("theirs", dead_here())
    assert desk.run(change(reason=ActionReason.BY_REQUEST)).complete
    assert desk.fake.calls[0] == "undo job.sft theirs"
    assert desk.ledger.state().resources[SFT].key != "theirs"


def test_an_attempt_at_something_else_is_undone_first(desk: FakeEngine) -> None:
    failed = desk.attempt("first", dead_here())
    failed.fail(failed.state().open_intents[SFT], "no")
    desk.attempt("second", dead_here())
    assert desk.run(change(after={"v": 2})).complete
    key = desk.ledger.state().resources[SFT].key
    assert desk.fake.calls == [
        "undo job.sft first",
        "undo job.sft second",
        f"make job.sft {key}",
    ]
    assert desk.ledger.state().orphaned_intents == {}


def test_an_attempt_whose_run_is_live_is_left_alone(desk: FakeEngine) -> None:
    """Though no plan knew of it; its key is kept, and once it may be stopped it is undone."""
    desk.attempt("live", dead_here())
    desk.fake.live.add("live")
    failed = desk.run(change(after={"v": 2}))
    assert (failed.failed[SFT].code, desk.fake.calls) == ("live-run", [])
    assert "live" in [one.key for one in desk.ledger.state().orphaned_intents[SFT]]
    assert desk.run(
        change(after={"v": 2}), permit=ApplyPermissions(runs=frozenset({"live"}))
    ).complete
    assert desk.fake.calls[0] == "undo job.sft live"


@pytest.mark.parametrize("recorded", [False, True])
def test_what_an_undone_attempt_leaves_is_of_the_record(desk: FakeEngine, recorded: bool) -> None:
    """As if it was recorded when it ended, for the change that follows; where there is a record it is kept although that fails."""
    if recorded:
        desk.run(change(after={"v": 0}))
    desk.attempt("old", dead_here())
    desk.fake.left["old"] = {"run": {"id": "its"}}
    desk.fail(TrainctlError("no"))
    desk.run(change(action=Action.REPLACE, after={"v": 2}, seen=None))
    known = desk.fake.steps[SFT].recorded
    assert known is not None
    assert known.outputs["runs"] == [{"id": "its"}]
    assert known.attributes == {"v": 0 if recorded else 1}
    kept = desk.ledger.state().resources.get(SFT)
    assert (kept is not None and "runs" in kept.outputs) is recorded


def test_what_cannot_be_undone_keeps_its_key(desk: FakeEngine) -> None:
    desk.attempt("old", dead_here())

    def unreachable(intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        raise NodeUnreachable("silent")

    desk.fake.undo = unreachable  # type: ignore[method-assign]
    desk.run(change(after={"v": 2}))
    assert desk.fake.calls == []
    assert [one.key for one in desk.ledger.state().orphaned_intents[SFT]] == ["old"]


def test_an_attempt_that_was_resumed_and_has_to_wait_is_kept(desk: FakeEngine) -> None:
    """It may have left something behind, so the next apply resumes or undoes it; a new one that waits left nothing."""
    desk.fail(DeferredStep("no disk space", "Apply again."))
    desk.run(change())
    assert desk.ledger.state().orphaned_intents == {}
    desk.attempt("old", dead_here())
    desk.run(change(resumes="old"))
    assert [one.key for one in desk.ledger.state().orphaned_intents[SFT]] == ["old"]


def test_a_step_never_undoes_its_own_attempt(
    desk: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command released its lock as soon as it began: the step fails, and the next apply resumes it."""
    begin = desk.ledger.begin

    def begin_and_lose(start: IntentRequest) -> Intent:
        intent = begin(start)
        ledger_on(desk.log).release(intent.id)
        desk.ledger.state()
        return intent

    monkeypatch.setattr(desk.ledger, "begin", begin_and_lose)
    failed = desk.run(change()).failed[SFT]
    (attempt,) = desk.ledger.state().orphaned_intents[SFT]
    assert failed.code == "lease-lost"
    assert desk.fake.calls == [f"make job.sft {attempt.key}"]

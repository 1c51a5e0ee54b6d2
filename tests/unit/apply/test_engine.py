"""Walking a plan: intents, effects and outcomes; attempts without a recorded outcome are resumed or undone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.fake_engine import DIGEST, EVAL, LAB, SFT, FakeEngine, change
from tests.support.storage.ledgers import dead_here, elsewhere, ledger_on
from trainctl.apply.engine import ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import ApplyStep, DeferredStep, MayStop, StepFailed
from trainctl.errors import (
    LockHeld,
    NodeUnreachable,
    StalePlan,
    StorageError,
    TrainctlError,
    UserInterrupt,
)
from trainctl.ledger.ledger import IntentRequest
from trainctl.ledger.state import Intent, Lookup, State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.delivery import TransferForecast
from trainctl.model.events import EventType
from trainctl.plan.changes import change_digest
from trainctl.plan.values import AffectedRun, DeliveryRow, TierFacts
from trainctl.views.apply_result import counts


@pytest.fixture
def desk() -> FakeEngine:
    """An empty state and a willing handler."""
    return FakeEngine()


def test_the_outcome_is_what_the_handler_gave(desk: FakeEngine) -> None:
    result = desk.run(change(depends_on=(LAB,)))
    record = desk.ledger.state().resources[SFT]
    assert result.complete
    assert (record.attributes, record.outputs) == ({"v": 1}, {"made": record.key})
    assert record.depends_on == (LAB,)
    assert desk.ledger.state().open_intents == {}
    assert desk.lines(EventType.STEP_STARTED) == ["job.sft: creating"]
    assert desk.lines(EventType.STEP_DONE) == ["job.sft: created"]


def test_the_intent_is_written_before_the_effect(desk: FakeEngine) -> None:
    """With what whoever comes after a crash needs: the key, the values, the cluster, the plan."""
    seen: list[State] = []
    desk.fake.does[SFT] = lambda step: seen.append(ledger_on(desk.log).state())
    desk.run(change(after={"v": 1, "cluster": "lab"}, depends_on=(LAB,)))
    intent = seen[0].open_intents[SFT]
    assert intent.inputs == {
        "cluster": "lab",
        "attributes": {"v": 1, "cluster": "lab"},
        "depends_on": ["cluster.lab"],
        "digest": change_digest(change(after={"v": 1, "cluster": "lab"}, depends_on=(LAB,))),
    }
    assert (intent.action, intent.plan) == ("create", DIGEST)
    assert intent.key == desk.fake.steps[SFT].key


def test_a_removal_takes_the_record_away(desk: FakeEngine) -> None:
    desk.run(change(), change(EVAL))
    gone = [
        change(SFT, Action.DELETE, before={"v": 1}, after=None, seen=1),
        change(EVAL, Action.FORGET, before={"v": 1}, after=None, seen=1),
    ]
    desk.fake.calls.clear()
    assert desk.run(*gone).complete
    assert desk.fake.calls == ["delete job.sft"]
    assert desk.ledger.state().resources == {}
    assert desk.fake.steps[SFT].attributes == {"v": 1}


def test_records_are_made_together(desk: FakeEngine) -> None:
    """What is nowhere but in the state needs no handler and shares an append; what stands on it follows, and it goes as it came."""
    teams = [change(Address.parse(f"project.p{number}")) for number in range(50)]
    before = desk.log.read().next
    assert desk.run(*teams, change(depends_on=(teams[7].address,))).complete
    assert desk.log.read().next == before + 3
    assert len(desk.fake.calls) == 1
    assert len(desk.lines(EventType.STEP_STARTED)) == len(desk.lines(EventType.STEP_DONE)) == 51
    gone = [
        replace(team, action=Action.DELETE, before={"v": 1}, after=None, seen=1)
        for team in teams[:7]
    ]
    assert desk.run(*gone).complete
    assert len(desk.ledger.state().resources) == 44


def test_a_failure_is_recorded_and_stops_only_what_needs_it(desk: FakeEngine) -> None:
    """The lease ends, the key is kept, dependants are skipped and told why, the rest goes on."""
    desk.fail(StorageError("disk full", "Free some."), LAB)
    result = desk.run(change(LAB), change(SFT, depends_on=(LAB,)), change(EVAL))
    state = desk.ledger.state()
    assert [change.address for change in result.done] == [EVAL]
    assert (list(result.failed), result.skipped) == ([LAB], {SFT: LAB})
    assert result.failed[LAB].address == "cluster.lab"
    assert state.open_intents == {}
    assert len(state.orphaned_intents[LAB]) == 1
    assert desk.lines(EventType.STEP_FAILED) == ["cluster.lab: disk full"]
    assert desk.lines(EventType.STEP_SKIPPED) == ["job.sft: skipped, as cluster.lab failed"]


def test_a_fault_of_ours_is_not_swallowed(desk: FakeEngine) -> None:
    """It is raised when the other steps have ended; the intent stays open for the next apply."""
    desk.fail(ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        desk.run(change(), change(EVAL))
    state = desk.ledger.state()
    assert list(state.resources) == [EVAL]
    assert list(state.open_intents) == [SFT]
    assert desk.ledger.held() == ()


def test_a_failed_step_may_have_something_to_record(desk: FakeEngine) -> None:
    desk.fail(StepFailed(TrainctlError("no mount", "Move it."), {"runs": [1]}))
    result = desk.run(change())
    assert result.failed[SFT].detail == "Move it."
    assert desk.ledger.state().resources[SFT].outputs == {"runs": [1]}
    assert desk.ledger.state().orphaned_intents == {}


def test_an_effect_of_which_nobody_knows_stays_open(desk: FakeEngine) -> None:
    """The next apply, of this process or another, finds the intent and may take it at once."""
    desk.fail(NodeUnreachable("silent"))
    assert SFT in desk.run(change()).failed
    (intent,) = desk.ledger.state().open_intents.values()
    assert desk.ledger.held() == ()
    desk.fake.does.clear()
    desk.run(change(resumes=intent.key))
    assert desk.fake.calls == [f"make job.sft {intent.key}"] * 2
    assert desk.ledger.state().resources[SFT].key == intent.key


def test_an_address_that_another_changes_is_refused(desk: FakeEngine) -> None:
    desk.attempt("other", elsewhere("ann"))
    result = desk.run(change())
    assert isinstance(result.failed[SFT], LockHeld)
    assert result.exit_code == 10
    assert desk.fake.calls == []


def test_what_another_left_while_one_waited_is_undone(desk: FakeEngine) -> None:
    ann = desk.attempt("hers", elsewhere("ann"))
    ending = threading.Timer(0.2, lambda: ann.fail(ann.state().open_intents[SFT], "no"))
    ending.start()
    assert desk.run(change(after={"v": 2}), permit=ApplyPermissions(lock_timeout=10)).complete
    ending.join()
    assert desk.fake.calls[0] == "undo job.sft hers"


def test_a_run_that_was_asked_for_is_not_anothers(desk: FakeEngine) -> None:
    """Another apply made the same values so meanwhile: that is what was wanted, unless it was a run of one's own."""
    desk.run(change())
    late = change(seen=0)
    beaten = desk.run(late, digest="sha256:other")
    actor = desk.ledger.header().actor
    assert (beaten.complete, beaten.by_others) == (True, {SFT: actor})
    assert desk.lines(EventType.STEP_DONE)[-1] == f"job.sft: created by {actor} meanwhile"
    assert counts(beaten)["added"] == 0
    asked = replace(late, reason=ActionReason.BY_REQUEST, action=Action.REPLACE)
    result = desk.run(asked, digest="sha256:other")
    assert isinstance(result.failed[SFT], StalePlan)
    assert len(desk.fake.calls) == 1


LIVE = AffectedRun("abc1234", 3, None, 1)


@pytest.mark.parametrize(
    ("permit", "created"),
    [
        (ApplyPermissions(), False),
        (ApplyPermissions(runs=frozenset({"other"})), False),
        (ApplyPermissions(stop_running=True), True),
        (ApplyPermissions(runs=frozenset({"abc1234"})), True),
    ],
)
def test_a_live_run_is_left_alone_without_permission(
    desk: FakeEngine, permit: ApplyPermissions, created: bool
) -> None:
    """By the flag, or by a plan that names that very run."""
    result = desk.run(change(stops=LIVE), change(EVAL, depends_on=(SFT,)), permit=permit)
    assert result.complete is created
    assert bool(desk.fake.calls) is created
    if not created:
        assert result.exit_code == 12
        assert result.skipped == {EVAL: SFT}
        assert desk.lines(EventType.STEP_SKIPPED) == [
            "job.eval: skipped, as job.sft was not stopped"
        ]


def test_the_first_interrupt_finishes_what_is_in_flight(desk: FakeEngine) -> None:
    """It has its outcome; what had not begun is named, and the exit code is 130."""
    desk.fake.does[LAB] = lambda step: desk.interrupt.stopping.set()
    result = desk.run(change(LAB), change(SFT), parallelism=1)
    assert [change.address for change in result.done] == [LAB]
    assert result.not_started == [SFT]
    assert result.exit_code == 130
    assert desk.ledger.state().open_intents == {}


def test_the_second_interrupt_ends_what_steps_wait_for(desk: FakeEngine) -> None:
    """A step that waits gets its transport closed; its intent stays open, whatever it then raises."""

    def wait(step: ApplyStep) -> None:
        desk.interrupt.stopping.set()
        desk.interrupt.cancelled.set()
        assert desk.given_up.wait(10)
        raise TrainctlError("the transport was closed")

    desk.fake.does[SFT] = wait
    result = desk.run(change())
    assert isinstance(result.failed[SFT], UserInterrupt)
    assert result.exit_code == 130
    state = desk.ledger.state()
    assert (list(state.open_intents), state.orphaned_intents) == ([SFT], {})


def test_a_lost_lease_begins_nothing_more(desk: FakeEngine) -> None:
    """As the second Ctrl-C, but said so: others may act on what this process was changing."""
    lines: list[str] = []
    desk.interrupt = Interrupt(lines.append)

    def lose(step: ApplyStep) -> None:
        desk.interrupt.cancel("the lock was lost")
        step.stop_if_cancelled()

    desk.fake.does[LAB] = lose
    result = desk.run(change(LAB), change(SFT), parallelism=1)
    assert result.failed[LAB].summary == "the lock was lost"
    assert result.not_started == [SFT]
    assert lines == ["Stopping: the lock was lost."]


def test_an_outcome_after_the_lease_was_taken_is_refused(desk: FakeEngine) -> None:
    """Whoever took it over decides; the state says what they did, not what this process did."""

    def meanwhile(step: ApplyStep) -> None:
        other = ledger_on(desk.log, holder=elsewhere())
        other.release(other.state().open_intents[SFT].id)

    desk.fake.does[SFT] = meanwhile
    assert isinstance(desk.run(change()).failed[SFT], LockHeld)
    assert desk.ledger.state().resources == {}


def test_a_forecast_leaves_out_what_goes_before_the_delivery(desk: FakeEngine) -> None:
    """Another step mirrors the weights, and what the node has is not moved."""
    tiers = TierFacts(node=5, mirror=3, upstream=4)
    weights = Address.parse("weights.a")
    row = DeliveryRow(
        SFT, 0, "lab/lab-0", weights, tiers, "peers", "", "", 30.0, last_hop_seconds=10.0
    )
    desk.run(change(), deliveries=(row,))
    assert desk.fake.steps[SFT].forecasts == {(0, "weights.a"): TransferForecast(10.0, 7)}


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
    assert "live" in [intent.key for intent in desk.ledger.state().orphaned_intents[SFT]]
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
    assert [intent.key for intent in desk.ledger.state().orphaned_intents[SFT]] == ["old"]


def test_an_attempt_that_was_resumed_and_has_to_wait_is_kept(desk: FakeEngine) -> None:
    """It may have left something behind, so the next apply resumes or undoes it; a new one that waits left nothing."""
    desk.fail(DeferredStep("no disk space", "Apply again."))
    desk.run(change())
    assert desk.ledger.state().orphaned_intents == {}
    desk.attempt("old", dead_here())
    desk.run(change(resumes="old"))
    assert [intent.key for intent in desk.ledger.state().orphaned_intents[SFT]] == ["old"]


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

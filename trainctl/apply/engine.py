"""Walks a plan: every change in its turn, many at a time, each as intent, effect, outcome."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import (
    ApplyStep,
    DeferredStep,
    StepFailed,
    StepHandler,
    is_already_recorded,
    is_concurrent_apply,
    wait_for_lock,
)
from trainctl.apply.walk import ApplyResult, GraphWalk, change_dependencies, effective_changes
from trainctl.errors import (
    LockHeld,
    NodeUnreachable,
    StalePlan,
    StorageError,
    TrainctlError,
    UserInterrupt,
)
from trainctl.ledger.leases import LeaseRenewer
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import TransferForecast
from trainctl.model.events import Emit, Event, EventType
from trainctl.plan.graph import REMOVES
from trainctl.plan.runs import has_same_effect
from trainctl.plan.values import Change, Plan

_Settle = Callable[[], None]
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ApplyPermissions:
    """What the user allowed beyond the plan: to stop any live run, or those runs that a saved plan names."""

    stop_running: bool = False
    runs: frozenset[str] = frozenset()
    lock_timeout: float = 0.0

    def allows(self, change: Change) -> bool:
        """Whether this change may be made although it stops a live run."""
        return change.stops is None or self.may_stop(change.stops.id)

    def may_stop(self, run: str) -> bool:
        """Whether a live run of that id may be stopped."""
        return self.stop_running or run in self.runs


class ApplyEngine:
    """Carries out plans through handlers; says what happens through events."""

    def __init__(
        self,
        ledger: Ledger,
        handlers: Mapping[Kind, StepHandler],
        emit: Emit,
        interrupt: Interrupt,
        give_up: Callable[[], None],
        parallelism: int = 10,
        why_not_yet: Callable[[Change], str] = lambda _: "",
    ) -> None:
        """``give_up`` ends what steps wait for, when the user will not wait any longer.

        ``why_not_yet`` says why a change whose turn has come is to be left to a later apply; nothing if it isn't.
        """
        self._ledger = ledger
        self._handlers = handlers
        self._emit = emit
        self._interrupt = interrupt
        self._give_up = give_up
        self._parallelism = parallelism
        self._why_not_yet = why_not_yet
        self._seconds: dict[Address, float] = {}
        self._forecasts: dict[Address, dict[tuple[int, str], TransferForecast]] = {}
        self._lease_lost = False

    def run(self, plan: Plan, permit: ApplyPermissions) -> ApplyResult:
        """Make the plan so as far as it goes. Failures are in the result; only a broken state raises."""
        changes = effective_changes(plan.changes)
        result = ApplyResult()
        for line in plan.deliveries:
            of_job = self._forecasts.setdefault(line.job, {})
            missing = line.tiers.missing if line.tiers else None
            of_job[line.rank, str(line.weights)] = TransferForecast(line.last_hop_seconds, missing)
        walk = GraphWalk(changes, change_dependencies(changes, self._ledger.state()), result)
        for change in changes.values():
            if not permit.allows(change):
                walk.leave_alone(change)
        with (
            LeaseRenewer(self._ledger, self._lost) as keeper,
            ThreadPoolExecutor(self._parallelism, thread_name_prefix="step") as pool,
        ):
            self._walk(walk, pool, plan, lambda change: self._step(change, plan, permit, keeper))
        walk.close()
        result.interrupted = self._interrupt.stopping.is_set() and not self._lease_lost
        for address, cause in result.skipped.items():
            how = "waits" if cause in result.deferred else "was not stopped"
            how = "failed" if cause in result.failed else how
            self._emit(Event(EventType.STEP_SKIPPED, f"skipped, as {cause} {how}", address))
        return result

    def _lost(self) -> None:
        """Someone else may act on what this process was changing: it stops its own work, as by the second Ctrl-C."""
        self._lease_lost = True
        self._interrupt.cancel("the lock was lost")

    def _walk(
        self,
        walk: GraphWalk,
        pool: ThreadPoolExecutor,
        plan: Plan,
        step: Callable[[Change], TrainctlError | None],
    ) -> None:
        finished: queue.SimpleQueue[_Settle] = queue.SimpleQueue()

        def work(change: Change) -> None:
            error: TrainctlError | None = TrainctlError(
                "the step ended without a result", code="internal-error"
            )
            try:
                error = step(change)
            finally:
                finished.put(lambda: walk.settle(change, error))

        def record(changes: list[Change]) -> None:
            done: frozenset[Address] = frozenset()
            try:
                done = self._record(changes, plan)
            finally:
                finished.put(lambda: walk.settle_records(changes, done))

        futures = []
        while True:
            if not self._interrupt.stopping.is_set():
                records = walk.take_records()
                futures += [pool.submit(record, records)] if records else []
                futures += [
                    pool.submit(work, change) for change in walk.take_ready(self._parallelism)
                ]
            if not walk.is_under_way:
                break
            self._next(finished)()
        for future in futures:
            future.result()  # a fault of ours is raised here, not swallowed by the pool

    def _next(self, finished: queue.SimpleQueue[_Settle]) -> _Settle:
        """What to note of the next step that has ended; after the second Ctrl-C what it waits for is ended, too."""
        while True:
            try:
                return finished.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._interrupt.cancelled.is_set():
                    self._give_up()

    def _record(self, changes: list[Change], plan: Plan) -> frozenset[Address]:
        """Make changes of which nothing is outside the state; those that it was done for. The others are steps like any."""
        began = time.monotonic()
        made = []
        for change in changes:
            start = _start(change, change.resumes or str(uuid.uuid4()), plan)
            removed = change.action in REMOVES
            made.append((start, None if removed else _record(change, start.key, {})))
        try:
            done = self._ledger.record(made)
        except TrainctlError:
            return frozenset()
        for change in changes:
            if change.address in done:
                self._emit_started(change)
                self._emit_done(change, None, began)
        return done

    def _step(
        self, change: Change, plan: Plan, permit: ApplyPermissions, keeper: LeaseRenewer
    ) -> TrainctlError | None:
        began = time.monotonic()
        reason = self._why_not_yet(change)
        if reason:
            return self._emit_deferred(change, DeferredStep(reason, "Apply again then."))
        self._emit_started(change)
        try:
            recorded = self._apply_change(change, plan, permit, keeper)
        except DeferredStep as error:
            return self._emit_deferred(change, error)
        except TrainctlError as error:
            error.address = error.address or str(change.address)
            self._emit(
                Event(
                    EventType.STEP_FAILED,
                    error.summary,
                    change.address,
                    {"detail": error.detail, "code": error.code},
                )
            )
            return error
        self._emit_done(change, recorded, began)
        return None

    def _emit_started(self, change: Change) -> None:
        data = {"action": change.action.name.lower()}
        self._emit(
            Event(EventType.STEP_STARTED, _PRESENT_VERBS[change.action], change.address, data)
        )

    def _emit_deferred(self, change: Change, why: DeferredStep) -> DeferredStep:
        why.address, why.lapses = str(change.address), change.reason is ActionReason.BY_REQUEST
        self._emit(Event(EventType.STEP_SKIPPED, why.summary, change.address))
        return why

    def _emit_done(self, change: Change, recorded: RecordedResource | None, began: float) -> None:
        seconds = self._seconds[change.address] = round(time.monotonic() - began, 3)
        data = {"action": change.action.name.lower(), "seconds": seconds, **_run_of(recorded)}
        self._emit(Event(EventType.STEP_DONE, _PAST_VERBS[change.action], change.address, data))

    def _apply_change(
        self, change: Change, plan: Plan, permit: ApplyPermissions, keeper: LeaseRenewer
    ) -> RecordedResource | None:
        handler = self._handlers[change.address.kind]
        fresh = str(uuid.uuid4())
        try:
            intent = wait_for_lock(
                lambda: self._ledger.begin(_start(change, change.resumes or fresh, plan)),
                permit.lock_timeout,
                self._interrupt,
            )
        except StalePlan as error:
            recorded = self._ledger.state().resources.get(change.address)
            if is_already_recorded(change, recorded) or is_concurrent_apply(change, error):
                return recorded
            raise
        with keeper.holding(intent):
            # Looked up under the lease: the holder before may have left something until the last moment,
            # and all of that lies before the intent in the log.
            state = self._ledger.known()
            recorded = state.find_record(change.address)
            step = self._make_step(change, plan, intent, recorded)
            step = replace(step, resumed=intent.key != fresh)
            try:
                for attempt in state.orphaned_intents.get(change.address, ()):
                    if attempt.key != intent.key:
                        left = handler.abandon(attempt, step.lookup, permit.may_stop)
                        step = replace(step, recorded=self._left(attempt, step.recorded, left))
                return self._effect(handler, step, change, intent)
            except DeferredStep as error:
                self._ledger.fail(intent, error.summary, waits=not step.resumed)
                raise
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                failure = StorageError(f"{where}{error.strerror or error}")
                self._record_failure(intent, change, failure)
                raise failure from error
            except TrainctlError as error:
                self._record_failure(intent, change, error)
                raise

    def _left(
        self, attempt: Intent, recorded: RecordedResource | None, left: Mapping[str, object]
    ) -> RecordedResource | None:
        """The record with what an attempt that was undone has left on purpose; kept at once where there is one to keep it in."""
        if not left:
            return recorded
        self._ledger.observe(attempt.address, left)
        known = recorded or _as_attempted(attempt)
        return replace(known, outputs=merge_outputs(known.outputs, left))

    def _record_failure(self, intent: Intent, change: Change, error: TrainctlError) -> None:
        """Record a failure; an attempt whose end is unknown stays open for the next apply."""
        if self._interrupt.cancelled.is_set():
            kind = LockHeld if self._lease_lost else UserInterrupt
            raise kind(
                self._interrupt.cause, "Apply again to continue.", address=str(change.address)
            ) from error
        if isinstance(error, StepFailed):
            self._ledger.finish(
                intent, _record(change, intent.key, error.outputs), error=error.summary
            )
        elif not isinstance(error, NodeUnreachable | UserInterrupt):
            self._ledger.fail(intent, error.summary)

    def _effect(
        self, handler: StepHandler, step: ApplyStep, change: Change, intent: Intent
    ) -> RecordedResource | None:
        if change.action in REMOVES:
            if change.action is Action.DELETE:
                handler.delete(step)
            self._ledger.finish(intent, None)
            return None
        recorded = _record(change, step.key, handler.apply(step))
        self._ledger.finish(intent, recorded)
        return recorded

    def _make_step(
        self, change: Change, plan: Plan, intent: Intent, recorded: RecordedResource | None
    ) -> ApplyStep:
        def progress(phase: str, done: int, total: int) -> None:
            data = {"phase": phase, "done": done, "total": total}
            self._emit(Event(EventType.STEP_PROGRESS, phase, change.address, data))

        return ApplyStep(
            address=change.address,
            action=change.action,
            key=intent.key,
            attributes=change.after or change.before or {},
            recorded=recorded,
            depends_on=change.depends_on,
            resolved=plan.resolved.get(change.address),
            lookup=self._ledger.recorded,
            progress=progress,
            seconds_of=lambda address: self._seconds.get(address, 0.0),
            cancelled=self._interrupt.cancelled,
            forecasts=self._forecasts.get(change.address, {}),
            notify=lambda text: self._emit(Event(EventType.DIAGNOSTIC, text, change.address)),
        )


_PRESENT_VERBS = {
    Action.CREATE: "creating",
    Action.UPDATE: "updating",
    Action.REPLACE: "replacing",
    Action.DELETE: "destroying",
    Action.FORGET: "forgetting",
}
_PAST_VERBS = {
    Action.CREATE: "created",
    Action.UPDATE: "updated",
    Action.REPLACE: "replaced",
    Action.DELETE: "destroyed",
    Action.FORGET: "forgotten",
}


def _resumes(attempt: Intent, change: Change) -> bool:
    """Whether to carry on an attempt that the plan need not have known: it may have been begun, and cut off, since.

    Not for a run that was asked for: another's attempt is not it.
    """
    return change.reason is not ActionReason.BY_REQUEST and has_same_effect(attempt, change)


def _start(change: Change, key: str, plan: Plan) -> IntentRequest:
    attributes = change.after or change.before or {}
    return IntentRequest(
        change.address,
        change.action.name.lower(),
        change.provider,
        key,
        {
            "cluster": attributes.get("cluster"),
            "attributes": change.after,
            "depends_on": [str(one) for one in change.depends_on],
        },
        plan.digest,
        change.reason or "",
        change.seen,
        lambda attempt: _resumes(attempt, change),
    )


def _as_attempted(attempt: Intent) -> RecordedResource:
    return RecordedResource(
        attempt.address, attempt.provider, attempt.attributes, {}, attempt.depends_on
    )


def _record(change: Change, key: str, outputs: Mapping[str, object]) -> RecordedResource:
    return RecordedResource(
        address=change.address,
        provider=change.provider,
        attributes=change.after or {},
        outputs=outputs,
        depends_on=change.depends_on,
        lifecycle=change.lifecycle,
        key=key,
    )


def _run_of(recorded: RecordedResource | None) -> dict[str, object]:
    runs = recorded.outputs.get("runs") if recorded else None
    return {"run": runs[-1]["id"], "status": runs[-1]["status"]} if runs else {}

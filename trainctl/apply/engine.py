"""The engine, which applies changes in parallel: intent, change, outcome."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import (
    ApplyStep,
    DeferredStep,
    LockTimeout,
    StepFailed,
    StepHandler,
    is_already_recorded,
    is_concurrent_apply,
    wait_for_lock,
)
from trainctl.apply.walk import ApplyResult, GraphWalk, change_dependencies, effective_changes
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.errors import (
    LockHeld,
    NodeUnreachable,
    StalePlan,
    StorageError,
    TrainctlError,
    UserInterrupt,
)
from trainctl.ledger.ledger import IntentRequest, LeaseRenewer, Ledger
from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import ORIGIN, Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import TransferForecast
from trainctl.model.events import Emit, Event, EventType
from trainctl.plan.changes import REMOVES, change_digest
from trainctl.plan.resources import has_same_effect
from trainctl.plan.values import Change, Plan

_Settle = Callable[[], None]
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ApplyPermissions:
    """Permission to stop any live run or those of a saved plan; lock timeout, see LockTimeout."""

    stop_running: bool = False
    runs: frozenset[str] = frozenset()
    lock_timeout: float | None = None

    def allows(self, change: Change) -> bool:
        """Whether a change is permitted with respect to the live run that it stops."""
        return change.stops is None or self.may_stop(change.stops.id)

    def may_stop(self, run: str) -> bool:
        """Whether the live run with this id may be stopped."""
        return self.stop_running or run in self.runs


class ApplyEngine:
    """Applies plans with the handlers of each kind, and emits events."""

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
        """``give_up`` cancels what steps wait for after a second Ctrl-C.

        ``why_not_yet`` returns why a ready change must wait for a later apply, else an empty text.
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
        self._by_others: dict[Address, str] = {}
        self._lock_timeout = LockTimeout(None)
        self._lease_lost = False

    def run(self, plan: Plan, permit: ApplyPermissions) -> ApplyResult:
        """Apply the plan; failures are in the result. Raises only StateError."""
        changes = effective_changes(plan.acting)
        self._lock_timeout = LockTimeout(permit.lock_timeout)
        result = ApplyResult(by_others=self._by_others)
        for row in plan.deliveries:
            forecasts = self._forecasts.setdefault(row.job, {})
            missing = row.tiers.missing if row.tiers else None
            forecasts[row.rank, str(row.weights)] = TransferForecast(row.last_hop_seconds, missing)
        walk = GraphWalk(changes, change_dependencies(changes, self._ledger.state()), result)
        for change in changes.values():
            if not permit.allows(change):
                walk.leave_alone(change)
        with (
            LeaseRenewer(self._ledger, self._on_lease_lost) as renewer,
            ThreadPoolExecutor(self._parallelism, thread_name_prefix="step") as pool,
        ):
            self._walk(walk, pool, plan, lambda change: self._step(change, plan, permit, renewer))
        walk.close()
        result.interrupted = self._interrupt.stopping.is_set() and not self._lease_lost
        for address, cause in result.skipped.items():
            how = "waits" if cause in result.deferred else "was not stopped"
            how = "failed" if cause in result.failed else how
            self._emit(Event(EventType.STEP_SKIPPED, f"skipped, as {cause} {how}", address))
        return result

    def _on_lease_lost(self) -> None:
        """Stop all work, because another process may change the same resources."""
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
            future.result()  # raises internal errors

    def _next(self, finished: queue.SimpleQueue[_Settle]) -> _Settle:
        """Wait for a finished step; after a second Ctrl-C cancel what steps wait for."""
        while True:
            try:
                return finished.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._interrupt.cancelled.is_set():
                    self._give_up()

    def _record(self, changes: list[Change], plan: Plan) -> frozenset[Address]:
        """Record state-only changes in one append; return the recorded addresses."""
        started = time.monotonic()
        records = []
        for change in changes:
            start = _start(change, change.resumes or str(uuid.uuid4()), plan)
            removed = change.action in REMOVES
            records.append((start, None if removed else _record(change, start.key, {})))
        try:
            done = self._ledger.record(records)
        except TrainctlError:
            return frozenset()
        for change in changes:
            if change.address in done:
                self._emit_started(change)
                self._emit_done(change, None, started)
        return done

    def _step(
        self, change: Change, plan: Plan, permit: ApplyPermissions, renewer: LeaseRenewer
    ) -> TrainctlError | None:
        started = time.monotonic()
        reason = self._why_not_yet(change)
        if reason:
            return self._emit_deferred(change, DeferredStep(reason, "Apply again then."))
        self._emit_started(change)
        try:
            recorded = self._apply_change(change, plan, permit, renewer)
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
        self._emit_done(change, recorded, started)
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

    def _emit_done(self, change: Change, recorded: RecordedResource | None, started: float) -> None:
        seconds = self._seconds[change.address] = round(time.monotonic() - started, 3)
        data = {"action": change.action.name.lower(), "seconds": seconds}
        if recorded and recorded.outputs.get("runs"):
            run = recorded.outputs["runs"][-1]
            data |= {"run": run["id"], "status": run["status"]}
        text = _PAST_VERBS[change.action]
        if change.reuses is not None:
            text = f"reuses {change.reuses.origin}"
        if change.address in self._by_others:
            text += f" by {self._by_others[change.address]} meanwhile"
            data["by"] = self._by_others[change.address]
        self._emit(Event(EventType.STEP_DONE, text, change.address, data))

    def _apply_change(
        self, change: Change, plan: Plan, permit: ApplyPermissions, renewer: LeaseRenewer
    ) -> RecordedResource | None:
        handler = self._handlers[change.address.kind]
        new_key = change.key or str(uuid.uuid4())
        try:
            intent = wait_for_lock(
                lambda: self._ledger.begin(_start(change, change.resumes or new_key, plan)),
                self._lock_timeout,
                self._interrupt,
            )
        except StalePlan as error:
            recorded = self._ledger.state().resources.get(change.address)
            if is_already_recorded(change, recorded) or is_concurrent_apply(change, error):
                self._by_others[change.address] = self._ledger.last_actor(change.address)
                return recorded
            raise
        with renewer.holding(intent):
            # Read under the lock: all entries of earlier holders precede the intent in the log.
            state = self._ledger.known()
            recorded = state.find_record(change.address)
            step = self._make_step(change, plan, intent, recorded)
            step = replace(step, resumed=intent.key != new_key)
            try:
                for attempt in state.orphaned_intents.get(change.address, ()):
                    if attempt.key != intent.key:
                        outputs = handler.undo(attempt, step.lookup, permit.may_stop)
                        recorded = self._record_undone(attempt, step.recorded, outputs)
                        step = replace(step, recorded=recorded)
                removes = change.action in REMOVES
                after = None if removes else _record(change, step.key, handler.apply(step))
                if change.action is Action.DELETE:
                    handler.delete(step)
                self._ledger.finish(intent, after)
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
            return after

    def _record_undone(
        self, attempt: Intent, recorded: RecordedResource | None, outputs: Mapping[str, object]
    ) -> RecordedResource | None:
        """Add the remaining outputs of an undone attempt to the record."""
        if not outputs:
            return recorded
        self._ledger.observe(attempt.address, outputs)
        record = recorded or RecordedResource(
            attempt.address, attempt.provider, attempt.attributes, {}, attempt.depends_on
        )
        return replace(record, outputs=merge_outputs(record.outputs, outputs))

    def _record_failure(self, intent: Intent, change: Change, error: TrainctlError) -> None:
        """Record a failure, unless the outcome is unknown: then the intent stays open."""
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
            machines={machine.node.key: machine for machine in change.machines},
            attributes=change.after or change.before or {},
            recorded=recorded,
            depends_on=change.depends_on,
            resolved=plan.resolved.get(change.address),
            lookup=self._ledger.recorded,
            progress=progress,
            seconds_of=lambda address: self._seconds.get(address, 0.0),
            cancelled=self._interrupt.cancelled,
            forecasts=self._forecasts.get(change.address, {}),
            identity=change.identity,
            reuses=change.reuses.run if change.reuses else None,
            spend_on_mirror=self._lock_timeout.spend_on_mirror,
            notify=lambda text: self._emit(Event(EventType.DIAGNOSTIC, text, change.address)),
        )


_PRESENT_VERBS = {
    Action.CREATE: "creating",
    Action.UPDATE: "updating",
    Action.REPLACE: "replacing",
    Action.REUSE: "reusing a run",
    Action.DELETE: "destroying",
    Action.FORGET: "forgetting",
}
_PAST_VERBS = {
    Action.CREATE: "created",
    Action.UPDATE: "updated",
    Action.REPLACE: "replaced",
    Action.REUSE: "reused",
    Action.DELETE: "destroyed",
    Action.FORGET: "forgotten",
}


def _start(change: Change, key: str, plan: Plan) -> IntentRequest:
    attributes = change.after or change.before or {}
    return IntentRequest(
        address=change.address,
        action=change.action.name.lower(),
        provider=change.provider,
        key=key,
        inputs={
            "cluster": attributes.get("cluster"),
            "attributes": change.after,
            "depends_on": list(map(str, change.depends_on)),
            "digest": change.approved_as or change_digest(change),
        },
        plan=change.approved_in or plan.digest,
        reason=change.reason or "",
        seen=change.seen,
        # Whether to resume an attempt, possibly newer than the plan.
        same=lambda attempt: (
            change.reason is not ActionReason.BY_REQUEST and has_same_effect(attempt, change)
        ),
    )


def _record(change: Change, key: str, outputs: Mapping[str, object]) -> RecordedResource:
    kept = {name: change.outputs[name] for name in (ORIGIN,) if name in change.outputs}
    after = change.after or {}
    pending = (name for name in change.after_unknown if after.get(name, name) is None)
    return RecordedResource(
        change.address,
        change.provider,
        {**after, **{name: outputs.get(name) for name in pending}},
        {**kept, **outputs},
        change.depends_on,
        change.lifecycle,
        key=key,
    )

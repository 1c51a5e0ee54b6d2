"""Changes of jobs: decides when a job runs again; see DESIGN.md."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, fields, replace
from trainctl.model.action import Action, ActionReason
from trainctl.model.json_codec import to_json
from trainctl.model.run import ReusedRun, RunRecord, RunStatus
from trainctl.model.specs.job_spec import CodeSpec, JobSpec
from trainctl.plan.changes import Path, changed_paths
from trainctl.plan.placement import NEW_RUN
from trainctl.plan.resources import (
    UNDOES_ATTEMPT,
    ResourceContext,
    is_attempt_at,
    live_run,
    plan_noop,
    run_end_note,
)
from trainctl.plan.values import Change, CodeTree, RerunRequest

_IN_PLACE = tuple(each.name for each in fields(JobSpec) if "in_place" in each.metadata)
_STARTS = frozenset({"rerun_of", "resume_from"})
NOT_CONFIGURATION = frozenset(
    {*_IN_PLACE, *_STARTS, "code", "weight_pins", "checkpoint_pins", "persisted_secrets"}
)
_NEW_RUN = frozenset({"create", "replace"})
_FAILED = (RunStatus.DEPLOY_FAILED, RunStatus.FAILED, RunStatus.LOST)
_REASONS = {
    "config": ActionReason.CONFIG_CHANGED,
    "code": ActionReason.CODE_CHANGED,
    "weights": ActionReason.WEIGHTS_CHANGED,
}
_LABELS = {"config": "configuration", "code": "code", "weights": "weights"}


def desired_job_attributes(
    context: ResourceContext, code: CodeTree | None, pins: dict[str, Any]
) -> dict[str, Any]:
    """Return the desired attributes with current code and pins, of weights and the best checkpoints."""
    job = context.resource.job_spec if context.resource else JobSpec()
    weights = [str(item.address) for item in job.weights]
    names = [load.best_of for load in job.runtime.loads if load.metric]
    chosen = {name: pins[name] for name in names if name in pins}
    return context.desired(
        {
            **({"checkpoint_pins": chosen} if chosen else {}),
            "code": _code(context, job.code, code),
            "weight_pins": {address: pins.get(address) for address in weights},
        }
    )


def plan_job(
    context: ResourceContext, today: dict[str, Any], followed: Change | None = None
) -> Change:
    """Plan a desired job; ``today`` are the attributes of a new run, ``followed`` the job that it evaluates."""
    run = context.newest_run
    if context.recorded is None or run is None:
        return context.make(Action.CREATE, today, after_unknown={"runs": True})
    resumes: str | None = None  # of the newest attempt or run if it failed
    if not context.replace:
        resumes = context.before.get("resume_from") if run.status in _FAILED else None
        if context.intent is not None and context.intent.action in _NEW_RUN:
            resumes = JobSpec.from_attributes(context.intent.attributes).resume_from
    if resumes:
        today = {**today, "resume_from": resumes}
    comparison = _RunComparison(context, today, run, followed)
    cause = comparison.new_run()
    if cause is not None:
        reason, paths = cause
        note = run_end_note(context, run)
        if resumes:
            command = f"trainctl run {context.address.shell_quoted}"
            note = f"{note}; resumes; to start from the beginning: {command}".removeprefix("; ")
        return context.make(
            Action.REPLACE,
            today,
            reason,
            after_unknown={"runs": True},
            replace_paths=paths,
            stops=live_run(context),
            note=note,
        )
    return comparison.same_run()


def with_reuse(change: Change, reused: ReusedRun | None) -> Change:
    """Plan to record a completed equal run instead of starting one."""
    if reused is None or change.action not in NEW_RUN:
        return change
    runs = [run for run in change.outputs.get("runs", ()) if run["id"] != reused.run.id]
    return replace(
        change,
        action=Action.REUSE,
        reason=ActionReason.REUSE,
        after_unknown={},
        replace_paths=(),
        outputs_after={"runs": [*runs, reused.run.to_json()]},
        reuses=reused,
    )


def plan_rerun(context: ResourceContext, today: dict[str, Any], start: RerunRequest) -> Change:
    """Plan a requested run that starts from an earlier one."""
    base = context.desired({}) if start.as_recorded else today
    is_recorded = context.recorded is not None
    return context.make(
        Action.REPLACE if is_recorded else Action.CREATE,
        {**{name: base[name] for name in base if name not in _STARTS}, **start.attributes},
        ActionReason.BY_REQUEST if is_recorded else None,
        after_unknown={"runs": True},
        stops=live_run(context),
        note=start.note,
    )


@dataclass(frozen=True)
class _RunComparison:
    """Comparison of the newest run and its attributes with today's attributes."""

    context: ResourceContext
    today: dict[str, Any]
    run: RunRecord
    followed: Change | None

    @cached_property
    def before(self) -> dict[str, Any]:
        return self.context.before

    @cached_property
    def causes(self) -> list[str]:
        """Those of ``config``, ``code`` and ``weights`` that changed since the newest run."""
        same = _configuration(self.before) == _configuration(self.today) or (
            _configuration(self.known[0]) == _configuration(self.known[1])
        )
        changed = {
            "config": not same,
            "code": _digest(self.before) != _digest(self.today),
            "weights": bool(self._moved_pins()),
        }
        return [cause for cause, is_changed in changed.items() if is_changed]

    @cached_property
    def known(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Attributes with the keys of this release, so that upgrades plan no new run."""
        return (
            JobSpec.from_attributes(self.before).to_attributes(),
            JobSpec.from_attributes(self.today).to_attributes(),
        )

    def new_run(self) -> tuple[ActionReason, tuple[Path, ...]] | None:
        """Return the reason for a new run and the paths that force it, or None."""
        lost = self.run.status is RunStatus.LOST or (
            self.context.is_missing and self.run.status.live
        )
        if lost and not self.run.stop_requested:
            return ActionReason.RUN_LOST, ()
        if self.run.status is RunStatus.DEPLOY_FAILED:
            return ActionReason.DEPLOY_FAILED, ()
        if self.context.replace:
            return ActionReason.BY_REQUEST, ()
        changed, intent = self._changed(), self.context.intent
        if changed is None and intent and intent.action in _NEW_RUN:
            return (ActionReason.INTERRUPTED, ()) if is_attempt_at(intent, self.today) else None
        return (ActionReason.FOLLOWED_RUN, ()) if changed is None and self._is_behind() else changed

    def _is_behind(self) -> bool:
        """Whether the followed job gets a new run, or has one and the evaluations of the one before have ended."""
        if self.followed is None or self.run.status.live:
            return self.followed is not None and self.followed.action in NEW_RUN
        newest = map(RunRecord.from_json, self.followed.outputs.get("runs", ())[-1:])
        is_newer = any((run.created_at or 0) > (self.run.created_at or 0) for run in newest)
        return is_newer or self.followed.action in NEW_RUN

    def same_run(self) -> Change:
        """Plan without a new run: update attributes that can change in place."""
        context, after = self.context, dict(self.before)
        for key in _IN_PLACE:
            value = self.today.get(key)
            if value not in (after.get(key), self.known[0].get(key)):
                after[key] = value
        reason = _REASONS[self.causes[0]] if self.causes else None
        note = self._note()
        if after == self.before:
            if context.intent is None:
                return plan_noop(context, after, reason=reason, note=note)
            reason, note = ActionReason.INTERRUPTED, UNDOES_ATTEMPT
        return context.make(Action.UPDATE, after, reason, note=note, outputs_after=context.outputs)

    def _changed(self) -> tuple[ActionReason, tuple[Path, ...]] | None:
        rerun_on = self.context.lifecycle.rerun_on
        if "config" in self.causes and "config" in rerun_on:
            return ActionReason.CANNOT_UPDATE, self._paths(["config"])
        if self.causes and self.run.status is RunStatus.FAILED:
            return ActionReason.RUN_FAILED, self._paths(self.causes)
        triggers = [cause for cause in self.causes if cause in rerun_on]
        return (ActionReason.BY_TRIGGERS, self._paths(triggers)) if triggers else None

    def _note(self) -> str:
        ended = run_end_note(self.context, self.run)
        if not self.causes:
            return ended
        labels = " and ".join(_LABELS[cause] for cause in self.causes)
        changed = f"{labels} changed since run {self.run.number}"
        return f"{ended}; {changed}" if ended else changed

    def _paths(self, causes: Sequence[str]) -> tuple[Path, ...]:
        paths: list[Path] = []
        if "config" in causes:
            paths += changed_paths(*map(_configuration, self.known))
        if "code" in causes:
            paths.append(("code", "digest"))
        if "weights" in causes:
            paths += [("weight_pins", address) for address in self._moved_pins()]
        return tuple(paths)

    def _moved_pins(self) -> list[str]:
        """Return the weights with a changed pin; unknown pins count as unchanged."""
        before = self.before.get("weight_pins") or {}
        return [
            address
            for address, pin in self.today["weight_pins"].items()
            if pin is not None and before.get(address) != pin
        ]


def _configuration(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in attributes.items()
        if key not in NOT_CONFIGURATION and value is not None
    }


def _digest(attributes: dict[str, Any]) -> Any:
    return (attributes.get("code") or {}).get("digest")


def _code(context: ResourceContext, spec: CodeSpec, code: CodeTree | None) -> dict[str, Any]:
    """Return the code's attributes, the recorded ones if it could not be read."""
    recorded = context.before.get("code")
    if code is None and recorded:
        return dict(recorded)
    if code is not None:
        spec = replace(spec, digest=code.digest, files=code.files, bytes=code.bytes)
    return dict(to_json(spec))

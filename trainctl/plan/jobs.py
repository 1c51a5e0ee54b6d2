"""When a job runs again. The order of the cases is the rule; DESIGN.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainctl.model.action import Action, ActionReason
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.diff import Path, changed_paths
from trainctl.plan.resource_context import ResourceContext
from trainctl.plan.resources import plan_noop
from trainctl.plan.runs import UNDOES_ATTEMPT, is_attempt_at, live_run, run_end_note
from trainctl.plan.values import Change, CodeTree, RerunRequest

_IN_PLACE = (
    *("labels", "priority", "max_duration", "retry"),
    *("matrix", "max_parallel", "depends_on"),
)
_STARTS = frozenset({"rerun_of", "resume_from"})
NOT_CONFIGURATION = frozenset({*_IN_PLACE, *_STARTS, "code", "weight_pins", "persisted_secrets"})
_NEW_RUN = frozenset({"create", "replace"})
_REASONS = {
    "config": ActionReason.CONFIG_CHANGED,
    "code": ActionReason.CODE_CHANGED,
    "weights": ActionReason.WEIGHTS_CHANGED,
}
_WORDS = {"config": "configuration", "code": "code", "weights": "weights"}


def desired_job_attributes(
    subject: ResourceContext, code: CodeTree | None, pins: dict[str, Any]
) -> dict[str, Any]:
    """A job's attributes with its code and the pins of its weights, as of today."""
    job = subject.resource.job_spec if subject.resource else JobSpec()
    weights = [str(item.address) for item in job.weights]
    return subject.wanted(
        {
            "code": _code(subject, job.code.path, code),
            "weight_pins": {address: pins.get(address) for address in weights},
        }
    )


def plan_job(subject: ResourceContext, today: dict[str, Any]) -> Change:
    """What happens to a wanted job; ``today`` is what a new run would run."""
    run = subject.newest_run
    if subject.recorded is None or run is None:
        return subject.make(Action.CREATE, today, after_unknown={"runs": True})
    verdict = _RunComparison(subject, today, run)
    found = verdict.new_run()
    if found is not None:
        reason, paths = found
        return subject.make(
            Action.REPLACE,
            today,
            reason,
            after_unknown={"runs": True},
            replace_paths=paths,
            stops=live_run(subject),
            note=run_end_note(subject, run),
        )
    return verdict.same_run()


def plan_rerun(subject: ResourceContext, today: dict[str, Any], start: RerunRequest) -> Change:
    """One new run that begins from an earlier one, because the user asked for it."""
    kept = subject.wanted({}) if start.as_recorded else today
    known = subject.recorded is not None  # a job that was forgotten is made once more
    return subject.make(
        Action.REPLACE if known else Action.CREATE,
        {**{name: kept[name] for name in kept if name not in _STARTS}, **start.attributes},
        ActionReason.BY_REQUEST if known else None,
        after_unknown={"runs": True},
        stops=live_run(subject),
        note=start.note,
    )


@dataclass(frozen=True)
class _RunComparison:
    """What was recorded against what is wanted today, and how the newest run stands."""

    subject: ResourceContext
    today: dict[str, Any]
    run: RunRecord

    @cached_property
    def before(self) -> dict[str, Any]:
        return self.subject.before

    @cached_property
    def causes(self) -> list[str]:
        """Which of ``config``, ``code`` and ``weights`` changed since the newest run."""
        changed = {
            "config": self._configuration_changed,
            "code": _digest(self.before) != _digest(self.today),
            "weights": bool(self._moved_pins()),
        }
        return [cause for cause, yes in changed.items() if yes]

    @property
    def _configuration_changed(self) -> bool:
        same = _configuration(self.before) == _configuration(self.today)
        return not same and _configuration(self.known[0]) != _configuration(self.known[1])

    @cached_property
    def known(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both with the keys of this release, so that one that knows more or fewer plans no new run."""
        both = (JobSpec.from_attributes(one) for one in (self.before, self.today))
        before, today = (one.to_attributes() for one in both)
        return before, today

    def new_run(self) -> tuple[ActionReason, tuple[Path, ...]] | None:
        """Why a new run is due and which paths force it, or None."""
        lost = self.run.status is RunStatus.LOST or (self.subject.gone and self.run.status.live)
        if lost and not self.run.stop_requested:
            return ActionReason.RUN_LOST, ()
        if self.run.status is RunStatus.DEPLOY_FAILED:
            return ActionReason.DEPLOY_FAILED, ()
        if self.subject.replace:
            return ActionReason.BY_REQUEST, ()
        return self._changed() or self._interrupted()

    def same_run(self) -> Change:
        """What remains to be done without a new run: the record of the last one stays, but for what is updated in place."""
        subject, kept = self.subject, dict(self.before)
        for key in _IN_PLACE:
            if self.today.get(key) != kept.get(key) and self.today.get(key) != self.known[0].get(
                key
            ):
                kept[key] = self.today[key]
        cause = self.causes[0] if self.causes else None
        reason = _REASONS[cause] if cause else None
        note = self._note()
        if kept != self.before:
            return subject.make(
                Action.UPDATE, kept, reason, note=note, outputs_after=subject.outputs
            )
        if subject.intent is not None:
            reason, note = ActionReason.INTERRUPTED, UNDOES_ATTEMPT
            return subject.make(
                Action.UPDATE, kept, reason, note=note, outputs_after=subject.outputs
            )
        return plan_noop(subject, kept, reason=reason, note=note)

    def _changed(self) -> tuple[ActionReason, tuple[Path, ...]] | None:
        rerun_on = self.subject.lifecycle.rerun_on
        if "config" in self.causes and "config" in rerun_on:
            return ActionReason.CANNOT_UPDATE, self._paths(["config"])
        if self.causes and self.run.status is RunStatus.FAILED:
            return ActionReason.RUN_FAILED, self._paths(self.causes)
        triggers = [cause for cause in self.causes if cause in rerun_on]
        return (ActionReason.BY_TRIGGERS, self._paths(triggers)) if triggers else None

    def _interrupted(self) -> tuple[ActionReason, tuple[Path, ...]] | None:
        intent = self.subject.intent
        if intent and intent.action in _NEW_RUN and is_attempt_at(intent, self.today):
            return ActionReason.INTERRUPTED, ()
        return None

    def _note(self) -> str:
        ended = run_end_note(self.subject, self.run)
        if not self.causes:
            return ended
        words = " and ".join(_WORDS[cause] for cause in self.causes)
        changed = f"{words} changed since run {self.run.number}"
        return f"{ended}; {changed}" if ended else changed

    def _paths(self, causes: list[str]) -> tuple[Path, ...]:
        paths: list[Path] = []
        if "config" in causes:
            paths += changed_paths(*map(_configuration, self.known))
        if "code" in causes:
            paths.append(("code", "digest"))
        if "weights" in causes:
            paths += [("weight_pins", address) for address in self._moved_pins()]
        return tuple(paths)

    def _moved_pins(self) -> list[str]:
        """Weights whose pin is another one; a pin that nobody could tell has not moved."""
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


def _code(subject: ResourceContext, path: str, code: CodeTree | None) -> dict[str, Any]:
    """The code as far as it could be read; what could not be is taken to be as recorded."""
    if code is not None:
        return {
            "path": path,
            "digest": code.digest,
            "files": code.files,
            "bytes": code.bytes,
        }
    recorded = subject.before.get("code")
    return recorded or {"path": path, "digest": None, "files": None, "bytes": None}

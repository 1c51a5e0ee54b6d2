"""Check plans against policies: ready limits, and rules in CEL in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from trainctl.base.lazy_dataclass import replace
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.model.trust import PlanPolicy, PolicyResult, PolicyStatus, PolicyViolation
from trainctl.operations.trust import load_policies
from trainctl.operations.workspace import Workspace
from trainctl.plan.policies import Form, UnknownFact, limit_violations
from trainctl.plan.values import Plan

EVALUATION_SECONDS = 10.0
"""Limit for all rules of a plan together; a rule can take exponential time."""
_USAGE_DAYS = 30
_PROGRAM = """
import cel, json, sys
request = json.load(sys.stdin)
for rule in request["rules"]:
    try:
        answer = cel.evaluate(rule, {"plan": request["plan"]})
        if not isinstance(answer, bool):
            answer = f"the rule is neither true nor false, but {type(answer).__name__}"
    except BaseException as problem:
        answer = f"{type(problem).__name__}: {problem}".splitlines()[0]
    print(json.dumps(answer), flush=True)
"""


def with_policies(workspace: Workspace, plan: Plan) -> Plan:
    """Return the plan with the results of the user's policies, and violations among its problems."""
    if not workspace.trust.policies:
        return plan
    results = tuple(check_form(workspace, workspace.settings.plan_json(plan)))
    positions = {
        str(address): resource.where for address, resource in workspace.desired.resources.items()
    }
    problems = [
        replace(problem, where=positions.get(problem.address or ""))
        for result in results
        for problem in policy_problems(result)
    ]
    return replace(plan, policy_results=results, diagnostics=(*plan.diagnostics, *problems))


def check_form(
    workspace: Workspace, form: Form, policy_file: Path | None = None
) -> list[PolicyResult]:
    """Check the JSON of a plan, also against a file of policies that is being written."""
    policies = [*workspace.trust.policies, *(load_policies(policy_file) if policy_file else ())]
    limited = any(policy.max_monthly_gpu_hours is not None for policy in policies)
    if limited or any("usage" in (policy.rule or "") for policy in policies):
        form = {**form, "usage": None if workspace.settings.untrusted else _usage(workspace)}
    return check_policies(policies, form)


def _usage(workspace: Workspace) -> dict[str, float]:
    """Return GPU hours and cost (USD) of the last 30 days in the state."""
    from trainctl.ledger.usage import run_usage, usage_rows

    now = time.time()
    since = now - _USAGE_DAYS * 86_400
    rows = usage_rows(run_usage(workspace.ledger.entries()), "total", since, now)
    return {
        "days": _USAGE_DAYS,
        "gpu_hours": sum(row.gpu_hours for row in rows),
        "cost": sum(row.cost for row in rows),
    }


def check_policies(policies: Sequence[PlanPolicy], form: Form) -> list[PolicyResult]:
    """Return a result for each policy; waivers end with their day in UTC."""
    rules = [policy.rule for policy in policies if policy.rule is not None]
    answers = iter(evaluate_rules(rules, form))
    today = datetime.now(UTC).date().isoformat()
    return [
        _result(policy, form, True if policy.rule is None else next(answers), today)
        for policy in policies
    ]


def _result(policy: PlanPolicy, form: Form, answer: bool | str, today: str) -> PolicyResult:
    try:
        violations = tuple(_violations(policy, form, answer))
        status = PolicyStatus.FAILED if violations else PolicyStatus.PASSED
    except (UnknownFact, AttributeError, KeyError, TypeError) as problem:
        why = problem if isinstance(problem, UnknownFact) else f"unexpected plan: {problem!r}"
        violations = (PolicyViolation(f"cannot evaluate the policy: {why}"),)
        status = PolicyStatus.ERROR
    waiver = policy.waiver
    if violations and waiver is not None and waiver.until >= today:
        status = PolicyStatus.WAIVED
    else:
        waiver = None
    where, level, message = policy.where, policy.level, policy.message
    return PolicyResult(
        policy=policy.label,
        where=where,
        level=level,
        status=status,
        violations=violations,
        message=message,
        waiver=waiver,
    )


def _violations(policy: PlanPolicy, form: Form, answer: bool | str) -> Iterator[PolicyViolation]:
    yield from limit_violations(policy, form)
    if isinstance(answer, str):
        raise UnknownFact(answer)
    if not answer:
        yield PolicyViolation(policy.message or f"the rule does not hold: {policy.rule}")


def evaluate_rules(
    rules: Sequence[str], form: Form, seconds: float = EVALUATION_SECONDS
) -> list[bool | str]:
    """Return for each CEL expression its value, or why it has none."""
    if not rules:
        return []
    if find_spec("cel") is None:
        return ["CEL is not installed; run: pip install 'trainctl[policy]'"] * len(rules)
    request = json.dumps({"rules": rules, "plan": form}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM],
            input=request,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        output, why = done.stdout, f"its evaluation ended with {done.returncode}"
    except OSError as problem:  # an untrusted plan runs no programs
        output, why = b"", f"its evaluation can't be started: {problem.strerror}"
    except subprocess.TimeoutExpired as stop:
        output, why = stop.output or b"", f"not evaluated within {seconds:g} seconds"
    complete = takewhile(lambda line: line.endswith(b"\n"), output.splitlines(keepends=True))
    answers: list[bool | str] = [json.loads(line) for line in complete]
    return answers + [why] * (len(rules) - len(answers))


def policy_problems(result: PolicyResult) -> Iterator[Diagnostic]:
    """Yield the violations of a policy: an error if it forbids the plan, else a warning."""
    for violation in result.violations:
        label = "" if result.policy == result.where else f" {result.policy!r}"
        texts = filter(None, dict.fromkeys((violation.allowed, result.message)))
        detail = ". ".join(t.rstrip(".") for t in texts if t != violation.summary)
        if result.waiver:
            detail = str(result.waiver)
        problem = Diagnostic(
            Severity.ERROR if result.forbids else Severity.WARNING,
            code="policy",
            summary=violation.summary,
            detail=f"Policy{label} at {result.where}{': ' if detail else ''}{detail}.",
            address=violation.address,
            forbids=result.forbids,
        )
        is_error = result.status is PolicyStatus.ERROR
        yield replace(problem, code="policy-error") if is_error else problem

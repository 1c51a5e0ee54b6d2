"""The user's mandatory limits, held against what is wished for and what it costs."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping

from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.model.specs.resource import DesiredResource
from trainctl.model.trust import PlanPolicy


def policy_violations(
    policies: Iterable[PlanPolicy], resources: Mapping[Address, DesiredResource], hourly_cost: float
) -> Iterator[Diagnostic]:
    """An error for each limit that is exceeded. ``hourly_cost`` is the plan's."""
    for policy in policies:
        most = policy.max_hourly_cost
        if most is not None and hourly_cost > most:
            yield _violation(
                policy, f"the plan costs {hourly_cost:.2f} per hour", f"at most {most:.2f}"
            )
        for resource in resources.values():
            for what, value, patterns in _limited(policy, resource):
                if not any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns):
                    allowed = " or ".join(patterns)
                    yield _violation(policy, f"{what} {value!r} is not allowed", allowed, resource)


def _limited(
    policy: PlanPolicy, resource: DesiredResource
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What of a resource a policy speaks of: what it is, its value, and the patterns one of which it must match."""
    if resource.address.kind is Kind.WEIGHTS and policy.sources is not None:
        yield "the source", _plain(resource.weights_spec.source), policy.sources
    if resource.address.kind is not Kind.CLUSTER:
        return
    if policy.providers is not None:
        yield "the provider", resource.provider, policy.providers
    region = resource.attributes.get("region")
    if policy.regions is not None and region is not None:
        yield "the region", str(region), policy.regions


def _plain(source: str) -> str:
    """A source as patterns see it: the path of a ``file:`` one leads where it says."""
    scheme, _, path = source.partition(":")
    if scheme != "file":
        return source
    absolute = path.startswith("/")
    normal = posixpath.normpath(f"/{path.lstrip('/')}" if absolute else path)
    return f"file://{normal}" if absolute else f"file:./{normal.removeprefix('./')}"


def _violation(
    policy: PlanPolicy, summary: str, allowed: str, resource: DesiredResource | None = None
) -> Diagnostic:
    name = f" {policy.name!r}" if policy.name else ""
    return Diagnostic(
        Severity.ERROR,
        code="policy",
        summary=summary,
        detail=f"Policy{name} at {policy.where}: {allowed}.",
        address=str(resource.address) if resource else None,
        where=resource.where if resource else None,
        forbids=True,
    )

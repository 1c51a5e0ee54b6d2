"""The ready limits of policies, checked on the JSON of a plan."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_bytes
from trainctl.model.address import Kind
from trainctl.model.trust import PlanPolicy, PolicyViolation

Form = Mapping[str, Any]
_Check = Callable[[Form, Any], Iterator[PolicyViolation]]
_USAGE = "the usage of the last 30 days is"
_COMMIT = compile_lazily(r"@[0-9a-f]{40}$")


class UnknownFact(Exception):
    """A fact that a policy needs and the plan doesn't have."""


def limit_violations(policy: PlanPolicy, form: Form) -> Iterator[PolicyViolation]:
    """Yield the violations of a policy's limits, its rule aside; raise UnknownFact."""
    for name, check in LIMITS.items():
        limit = getattr(policy, name)
        if limit is not None and limit is not False:
            yield from check(form, limit)


def _at_most(
    measure: Callable[[Form], float], summary: str, show: Callable[[Any], str] = "{:g}".format
) -> _Check:
    """Return the check of a number."""

    def check(form: Form, most: float) -> Iterator[PolicyViolation]:
        if (value := measure(form)) > most:
            yield PolicyViolation(summary.format(show(value)), f"at most {show(most)}")

    return check


def _gpus(form: Form) -> int:
    return sum(_known(run["gpus"], f"the GPUs of {run['job']} are") for run in form["runs"])


def _gpu_hours(form: Form) -> float:
    """Return the most GPU hours of the runs: by ``max_duration``, else as the longest of the earlier runs."""
    hours = 0.0
    for run in form["runs"]:
        if run["gpus"] != 0:
            seconds = run["max_seconds"] or max(run["seconds"], default=None)
            known = None if run["gpus"] is None or seconds is None else run["gpus"] * seconds / 3600
            hours += _known(known, f"the GPU hours of {run['job']}, without max_duration, are")
    return hours


def _pins(form: Form, _: bool) -> Iterator[PolicyViolation]:
    for address, weights in _planned(form, Kind.WEIGHTS):
        source = plain_source(weights["source"])
        local = source.startswith("file:./") and not source.startswith("file:./..")
        if not (local or weights.get("sha256") or _COMMIT.search(source)):
            allowed = "sources with a full commit, or sha256"
            yield PolicyViolation(f"the source {source!r} is not pinned", allowed, address)
    for address, job in _planned(form, Kind.JOB):
        if (image := _image(job)) and "@sha256:" not in image:
            allowed = "images by digest (NAME@sha256:…)"
            yield PolicyViolation(f"the image {image!r} is not pinned", allowed, address)


def _destroys(form: Form, patterns: tuple[str, ...]) -> Iterator[PolicyViolation]:
    for change in form["resource_changes"]:
        address = change["address"]
        if "delete" in change["change"]["actions"] and _matches(address, patterns):
            allowed = f"no destruction of {' or '.join(patterns)}"
            yield PolicyViolation("the plan destroys or replaces it", allowed, address)


def _allowed(kind: Kind, label: str, value_of: Callable[[Form], str | None]) -> _Check:
    """Return the check of a value of each planned resource: one of the patterns must match."""

    def check(form: Form, patterns: tuple[str, ...]) -> Iterator[PolicyViolation]:
        for address, values in _planned(form, kind):
            value = value_of(values)
            if value is not None and not _matches(value, patterns):
                summary = f"the {label} {value!r} is not allowed"
                yield PolicyViolation(summary, " or ".join(patterns), address)

    return check


def _matches(value: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def _planned(form: Form, kind: Kind) -> Iterator[tuple[str, Form]]:
    """Yield address and values of resources of a kind that exist afterwards."""
    for change in form["resource_changes"]:
        after = change["change"]["after"]
        if change["type"] == kind.value and after is not None:
            yield change["address"], {**after, "provider": change["provider_name"]}


def _image(job: Form) -> str | None:
    return job["image"]["base_image"] if job.get("image") else None


def _registry(job: Form) -> str | None:
    if (image := _image(job)) is None:
        return None
    host, slash, _ = image.partition("/")
    is_host = slash and (host == "localhost" or "." in host or ":" in host)
    return host if is_host else "docker.io"


def plain_source(source: str) -> str:
    """Normalize the path of a ``file:`` source, so that patterns can't be evaded."""
    scheme, _, path = source.partition(":")
    if scheme != "file":
        return source
    absolute = path.startswith("/")
    normal = posixpath.normpath(f"/{path.lstrip('/')}" if absolute else path)
    return f"file://{normal}" if absolute else f"file:./{normal.removeprefix('./')}"


def _known(value: Any, what: str) -> Any:
    if value is None:
        raise UnknownFact(f"{what} unknown")
    return value


LIMITS: Mapping[str, _Check] = {
    "max_hourly_cost": _at_most(
        lambda form: form["cost"]["hourly"], "the plan costs {} per hour", "{:.2f}".format
    ),
    "max_gpus": _at_most(_gpus, "the plan starts runs on {} GPUs"),
    "max_gpu_hours": _at_most(_gpu_hours, "the plan uses up to {} GPU hours", "{:.1f}".format),
    "max_monthly_gpu_hours": _at_most(
        lambda form: _known(form["usage"], _USAGE)["gpu_hours"] + _gpu_hours(form),
        "the last 30 days and the plan use up to {} GPU hours",
        "{:.1f}".format,
    ),
    "max_upstream_bytes": _at_most(
        lambda form: sum(
            _known(row["bytes_upstream"], f"the size of {row['address']} is")
            for row in form["weights"]
        ),
        "the plan downloads {} from upstream",
        format_bytes,
    ),
    "require_pins": _pins,
    "require_end": lambda form, _: (
        PolicyViolation(
            "its machines are billed until someone destroys them",
            "machines that end if no one returns",
            row["cluster"],
        )
        for row in form["cost"]["unattended"]
        if row["seconds"] is None
    ),
    "sources": _allowed(Kind.WEIGHTS, "source", lambda weights: plain_source(weights["source"])),
    "providers": _allowed(Kind.CLUSTER, "provider", lambda cluster: cluster["provider"]),
    "regions": _allowed(Kind.CLUSTER, "region", lambda cluster: cluster.get("region")),
    "images": _allowed(Kind.JOB, "image", _image),
    "registries": _allowed(Kind.JOB, "registry", _registry),
    "forbid_destroy": _destroys,
    "keep_checkpoints": lambda form, _: (
        PolicyViolation(
            f"the plan deletes the only copy of checkpoints: {lost['checkpoints']}",
            "checkpoints with another copy",
            lost["job"],
        )
        for lost in form["lost_checkpoints"]
    ),
}
"""Checks by the policy's key: violations of a limit in the JSON of a plan."""

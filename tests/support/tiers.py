"""The three tiers of tests, and the samples of the long tier that run every day.

- default: ``pytest`` without arguments. In-process tests, under a minute, without any service.
- integration: real sshds, containers, servers of buckets and whole commands. By directory, or marked where a unit test
  starts a service.
- long: every point of the kill matrices, long races, benchmarks. ``tests/run long``.

``sample``, ``points``, ``offset`` and ``one_day_in`` pick what the integration tier runs of the long one: part of it by a
fixed seed, part by ``SEED``, which changes every day and is printed; ``TEST_SEED`` repeats a day. Hypothesis
starts from ``SEED`` too, and tries so many examples as ``EXAMPLES`` has for ``--hypothesis-profile``.
"""

from __future__ import annotations

import datetime
import os
import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

DEFAULT = "not integration and not long"
SLOW = "integration and not long"
"""What ``-m integration`` means: a test of this tier that isn't due today is a long one too."""
INTEGRATION = (
    "benchmarks/",
    "conformance/providers/",
    "conformance/sources/",
    "e2e/",
    "faults/",
)
"""Directories below ``tests`` whose tests are all in the integration tier."""

os.environ.setdefault("TEST_SEED", str(datetime.date.today().toordinal()))  # noqa: DTZ011
SEED = int(os.environ["TEST_SEED"])
"""Today's. In a variable, so that workers started before and after midnight collect the same tests."""

EXAMPLES = {"unit": 20, "integration": 60, "long": 1000}
"""Examples of each property by profile; the first is the default."""


def register_profiles() -> None:
    """Make the profiles known, without time limits: tests may share their processors."""
    for name, count in EXAMPLES.items():
        settings.register_profile(
            name, max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)
        )
    settings.load_profile("unit")


def sample(cases: Sequence[Any], count: int, rotating: int = 0) -> list[Any]:
    """Parameters: ``count`` of the cases, always the same, for the suite; the rest is marked long."""
    chosen = set(random.Random(0).sample(range(len(cases)), count + rotating))
    return [
        case if number in chosen else pytest.param(*_values(case), marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> Sequence[Any]:
    return case if isinstance(case, tuple) else (case,)


def points(total: int, most: int) -> list[int]:
    """So many of the numbers 1 to ``total``, evenly spread; all of them when ``most`` is 0."""
    if not 0 < most < total:
        return list(range(1, total + 1))
    step = total / most
    return [1 + int(step * (number + 0.5)) for number in range(most)]


def one_day_in(days: int) -> pytest.MarkDecorator:
    """Run each of these tests on one day in so many; on the others it is a long one."""
    return pytest.mark.one_day_in(days)


def is_due(nodeid: str, days: int) -> bool:
    """Whether a test that runs on one day in ``days`` runs today."""
    return (zlib.crc32(nodeid.encode()) + SEED) % days == 0


def offset(step: int) -> int:
    """Where to begin today when every ``step``-th point of a matrix is tried."""
    return SEED % step

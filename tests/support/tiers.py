"""The three tiers of tests, and which cases of a large matrix are in the suite.

- default: ``pytest`` without arguments. In-process tests, about a minute, without any service.
- integration: real sshds, containers, servers of buckets and whole commands. By directory, or marked where a unit test
  starts a service.
- long: whole kill matrices, long races, properties with many random examples. ``tests/run long``.

A test is in one tier for good: nothing depends on the date. Hypothesis tries the same examples each time, except in the
long tier, which prints its random seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

DEFAULT = "not integration and not long"
INTEGRATION = "integration and not long"
LONG = "long"
"""Expressions of marks, one a tier."""
INTEGRATION_FOLDERS = (
    "conformance/providers/",
    "conformance/sources/",
    "e2e/",
    "faults/",
)
"""Directories below ``tests`` whose tests are all in the integration tier."""
PROPERTY_FOLDER = "property/"
"""Its tests run in the long tier, too, with more examples."""

_EXAMPLES = {"suite": 20, "long": 1000}
"""Examples of each property, by profile of Hypothesis."""


def register_profiles() -> None:
    """Make the profiles known, without time limits: tests may share their processors."""
    for name, count in _EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=count,
            deadline=None,
            derandomize=name != "long",
            suppress_health_check=list(HealthCheck),
        )
    settings.load_profile("suite")


def sample(cases: Sequence[Any], count: int) -> list[Any]:
    """Parameters: ``count`` of the cases, always the same, for the suite; the rest is marked long."""
    chosen = set(random.Random(0).sample(range(len(cases)), count))
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        case if number in chosen else pytest.param(*values[number], marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]


def points(total: int, most: int) -> list[int]:
    """So many of the numbers 1 to ``total``, evenly spread; all of them when ``most`` is 0."""
    if not 0 < most < total:
        return list(range(1, total + 1))
    step = total / most
    return [1 + int(step * (number + 0.5)) for number in range(most)]

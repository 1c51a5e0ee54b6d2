"""Three clients of one state: whatever happens, nothing is lost and no two change one address at once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.storage.state_world import KINDS, run
from trainctl_state import ObjectLog


@settings(max_examples=10)
@given(
    kind=st.sampled_from(KINDS), chance=st.randoms(use_true_random=False), steps=st.integers(1, 40)
)
def test_a_short_life(kind: type[ObjectLog], chance: Random, steps: int) -> None:
    run(kind, chance, steps)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_long_life(seed: int) -> None:
    run(KINDS[seed % len(KINDS)], Random(seed), steps=200)

"""Whatever happens to three clients of a state, nothing is lost and no two act on an address; as a program, the long form.

python -m tests.property.test_state_world [STEPS] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.storage.state_world import KINDS, run
from tests.support.tiers import SEED
from trainctl_state import ObjectLog

STEPS_OF_A_WORLD = 200


@settings(max_examples=10)
@given(
    kind=st.sampled_from(KINDS), chance=st.randoms(use_true_random=False), steps=st.integers(1, 40)
)
def test_a_short_life(kind: type[ObjectLog], chance: Random, steps: int) -> None:
    """Any life that hypothesis thinks of."""
    run(kind, chance, steps)


@pytest.mark.long
def test_long_lives() -> None:
    """Today's."""
    assert sum(live(4_000, SEED).values())


def live(steps: int, seed: int) -> Counter[str]:
    """So many steps in worlds of 200, by turns of each kind of log; what happened how often."""
    total: Counter[str] = Counter()
    for number in range(steps // STEPS_OF_A_WORLD):
        try:
            total += run(KINDS[number % 2], Random(seed + number), STEPS_OF_A_WORLD)
        except AssertionError as error:
            error.add_note(f"in the world of seed {seed + number}, {KINDS[number % 2].__name__}")
            raise
    return total


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("steps", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    counts = live(options.steps, options.seed)
    print(f"{options.steps:,} steps in {time.monotonic() - began:.0f} s, seed {options.seed}")
    for name, count in counts.most_common():
        print(f"{count:8,}  {name}")


if __name__ == "__main__":
    main()

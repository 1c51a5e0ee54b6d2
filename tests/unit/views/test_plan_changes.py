"""What is said of one change."""

from __future__ import annotations

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change
from trainctl.views.plan.changes import PageStyle, similar_lines
from trainctl.views.terminal.text import plain

PAGE = PageStyle(80, plain)


def of_a_sweep(seed: int, **after: object) -> Change:
    """A new job of a sweep; its seed is in its address alone."""
    address = Address.parse(f'job.j["seed={seed}"]')
    return Change(
        address, Action.CREATE, "local", after={"matrix": {"seed": seed}, "priority": 0, **after}
    )


def test_a_job_that_differs_in_nothing_shown_is_as_the_one_above() -> None:
    """And in nothing else: a sentence that breaks off would leave one looking for the rest."""
    first = of_a_sweep(1)

    same = similar_lines(of_a_sweep(2), first, PAGE)
    other = similar_lines(of_a_sweep(2, priority=5), first, PAGE)

    assert same == ['  + job.j["seed=2"], same as above']
    assert other[0] == '  + job.j["seed=2"], same as above except'
    assert [one.split() for one in other[1:]] == [["+", "priority", "=", "5"]]

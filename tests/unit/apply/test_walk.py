"""What waits for what, and the walk through it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from trainctl.apply.walk import ApplyResult, GraphWalk, change_dependencies, effective_changes
from trainctl.errors import LockHeld, PermissionDenied, StalePlan, TrainctlError, UserInterrupt
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.changes import order_changes
from trainctl.plan.values import Change


def at(name: str) -> Address:
    return Address.parse(f"job.{name}")


def change(name: str, action: Action = Action.CREATE, needs: str = "") -> Change:
    """A change that needs others, each of one letter."""
    return Change(at(name), action, "local", depends_on=tuple(map(at, needs)))


def recorded(**needs: str) -> State:
    """A state in which each resource depends on others."""
    records = [
        RecordedResource(at(a), "local", {}, {}, tuple(map(at, on))) for a, on in needs.items()
    ]
    return State(resources={record.address: record for record in records})


def walk_of(changes: Iterable[Change], state: State | None = None) -> tuple[GraphWalk, ApplyResult]:
    """A walk through changes in the order in which the planner puts them."""
    known = state or State()
    todo = effective_changes(order_changes(changes, known.resources))
    result = ApplyResult()
    return GraphWalk(todo, change_dependencies(todo, known), result), result


def taken(walk: GraphWalk, most: int = 9) -> str:
    """The names of what is handed out now."""
    return "".join(item.address.name for item in walk.take_ready(most))


def test_what_does_nothing_is_not_walked() -> None:
    changes = [change("a", Action.NOOP), change("b", Action.READ), change("c", Action.FORGET)]
    assert list(effective_changes(changes)) == [at("c")]


def test_what_is_needed_comes_first() -> None:
    a, b, c = change("a"), change("b", needs="a"), change("c", needs="ab")
    walk, _ = walk_of([c, b, a])
    assert taken(walk) == "a"
    assert taken(walk) == ""
    walk.settle(a, None)
    assert taken(walk) == "b"
    walk.settle(b, None)
    assert taken(walk) == "c"


def test_removals_wait_for_what_stood_on_them() -> None:
    state = recorded(a="", b="a", c="a")
    removed = change("b", Action.DELETE)
    updated = change("c", Action.UPDATE)
    walk, _ = walk_of([change("a", Action.DELETE), removed, updated], state)
    assert taken(walk) == "cb"
    walk.settle(removed, None)
    assert taken(walk) == ""
    walk.settle(updated, None)
    assert taken(walk) == "a"


def test_records_in_a_circle_end() -> None:
    """Nobody waits for ever: the smallest address goes first, as in the plan."""
    state = recorded(a="b", b="a", c="c")
    walk, result = walk_of([change(name, Action.DELETE) for name in "abc"], state)
    assert set(taken(walk)) == {"a", "c"}
    walk.settle(change("a", Action.DELETE), None)
    assert taken(walk) == "b"
    walk.close()
    assert result.not_started == []


def test_no_more_at_once_than_allowed() -> None:
    walk, _ = walk_of([change(name) for name in "abcd"])
    assert taken(walk, 2) == "ab"
    assert taken(walk, 2) == ""
    walk.settle(change("b"), None)
    assert taken(walk, 2) == "c"


def test_a_failure_stops_what_needs_it_and_nothing_else() -> None:
    """At any distance, each with its cause; what is independent goes on."""
    a, b, c, d = change("a"), change("b", needs="a"), change("c", needs="b"), change("d")
    walk, result = walk_of([a, b, c, d])
    assert taken(walk) == "ad"
    walk.settle(a, TrainctlError("no"))
    walk.settle(d, None)
    assert taken(walk) == ""
    assert result.skipped == {at("b"): at("a"), at("c"): at("a")}
    assert result.done == [d]


def test_what_is_left_alone_holds_what_stands_on_it() -> None:
    """Neither what needs it is made, nor what it stands on removed."""
    state = recorded(a="", b="a")
    left = change("b", Action.UPDATE)
    walk, result = walk_of([change("a", Action.DELETE), left, change("c", needs="b")], state)
    walk.leave_alone(left)
    assert taken(walk) == ""
    assert result.left_alone == [left]
    assert result.skipped == {at("a"): at("b"), at("c"): at("b")}


def test_what_was_never_begun_is_named() -> None:
    walk, result = walk_of([change("a"), change("b"), change("c", needs="a")])
    assert taken(walk, 1) == "a"
    walk.settle(change("a"), None)
    walk.close()
    assert result.not_started == [at("b"), at("c")]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ApplyResult(), 0),
        (ApplyResult(done=[change("a")]), 0),
        (ApplyResult(failed={at("a"): TrainctlError("x")}), 1),
        (ApplyResult(done=[change("a")], failed={at("b"): TrainctlError("x")}), 12),
        (ApplyResult(left_alone=[change("a")]), 12),
        (ApplyResult(failed={at("a"): LockHeld("x")}), 10),
        (ApplyResult(failed={at("a"): StalePlan("x")}), 11),
        (ApplyResult(failed={at("a"): PermissionDenied("x")}), 13),
        (ApplyResult(failed={at("a"): LockHeld("x"), at("b"): StalePlan("x")}), 1),
        (ApplyResult(done=[change("a")], failed={at("b"): LockHeld("x")}), 12),
        (ApplyResult(done=[change("a")], not_started=[at("b")], interrupted=True), 130),
        (ApplyResult(failed={at("b"): UserInterrupt("x")}, interrupted=True), 130),
        (
            ApplyResult(done=[change("a")], failed={at("b"): LockHeld("x")}, not_started=[at("c")]),
            12,
        ),
        (ApplyResult(done=[change("a")], interrupted=True), 0),
    ],
)
def test_exit_codes(result: ApplyResult, code: int) -> None:
    """Those of the contract: part of it is 12, an interrupt 130, one kind of refusal its own."""
    assert result.exit_code == code
    assert result.complete is (code == 0)

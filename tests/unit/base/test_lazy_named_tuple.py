"""A lazy named tuple behaves as the standard one does, and compiles nothing before it is made."""

from __future__ import annotations

import copy
import pickle
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

from trainctl.base import lazy_named_tuple
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.parallel import each


class Sized(NamedTuple):
    """Has a property, too."""

    size: int
    names: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.size + len(self.names)


class Derived(Sized):
    """Declares no field."""

    def __repr__(self) -> str:
        return "derived " + super().__repr__()


def declare(module: Any) -> type[Any]:
    class Point(module.NamedTuple):  # type: ignore[misc]
        """Where."""

        x: int
        y: Unknown = 2  # type: ignore[name-defined]  # noqa: F821  # not evaluated

    return Point


CASES: dict[str, Callable[[Any], Any]] = {
    "values": lambda p: (p(1), p(1, 3), p(x=1, y=4), p(1).x, p(1).y, [*p(1)], p(1)[1]),
    "equal": lambda p: (p(1) == p(1, 2), p(1) == (1, 2), p(1) < p(2), hash(p(1)) == hash((1, 2))),
    "missing": lambda p: p(),
    "unknown": lambda p: p(1, z=1),
    "too many": lambda p: p(1, 2, 3),
    "read-only": lambda p: setattr(p(1), "x", 2),
    "new attribute": lambda p: setattr(p(1), "z", 2),
    "replace": lambda p: p(1)._replace(y=5),
    "as dict": lambda p: p(1)._asdict(),
    "of a list": lambda p: p._make([3, 4]),
    "class": lambda p: (p._fields, p._field_defaults, p.__match_args__, p.__doc__, p.__slots__),
    "copy": lambda p: (copy.copy(p(1)), copy.deepcopy(p([1]))),
}


@pytest.mark.parametrize("case", CASES)
def test_behaviour_is_the_standard_classes(case: str) -> None:
    results = []
    for module in (typing, lazy_named_tuple):
        try:
            results.append(repr(CASES[case](declare(module))))
        except Exception as error:  # noqa: BLE001  # the two raise the same
            results.append(type(error).__name__)
    assert results[0] == results[1]


def test_the_error_names_the_class_and_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"Sized.__new__.. missing 1 required positional .*size"):
        Sized()  # type: ignore[call-arg]


def test_subclasses_have_the_fields_of_their_base() -> None:
    derived = Derived(3, ("a",))

    assert repr(derived) == "derived Derived(size=3, names=('a',))"
    assert (derived.total, derived._replace(size=4).total) == (4, 5)
    assert type(derived._replace(size=4)) is Derived
    assert repr(Sized(1)) == "Sized(size=1, names=())"


def test_instances_survive_pickling() -> None:
    copied = pickle.loads(pickle.dumps(Sized(7)))
    assert copied == Sized(7)
    assert type(copied) is Sized


def test_threads_that_make_the_first_at_once_make_the_same() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):

            class Pair(NamedTuple):
                first: int
                second: str = ""

            def make(number: int, pair: type[Any] = Pair) -> tuple[int, str]:
                made: tuple[int, str] = pair(number)
                return made

            assert each(make, range(4), 4) == [(number, "") for number in range(4)]
    finally:
        sys.setswitchinterval(interval)

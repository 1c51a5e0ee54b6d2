"""A lazy dataclass behaves as the standard one does, and compiles nothing before it is used."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from trainctl.base import lazy_dataclass
from trainctl.base.lazy_dataclass import dataclass as lazy
from trainctl.base.parallel import each

NOTHING = object()


def declare(module: Any) -> tuple[type, type, type]:
    """The same classes by one of the two modules."""
    decorator, field = module.dataclass, module.field

    @decorator(frozen=True, slots=True)
    class Point:
        x: int
        """Columns from the left."""
        tags: tuple[str, ...] = ()
        names: dict[str, int] = field(default_factory=dict)
        secret: str = field(default="s", repr=False, compare=False)
        absent: Any = NOTHING
        count: ClassVar[int] = 3

        def __post_init__(self) -> None:
            assert self.x >= 0

    @decorator(frozen=True, slots=True, kw_only=True)
    class Keyword:
        name: str = "n"
        size: int

    @decorator
    class Open:
        @decorator(frozen=True, order=True)
        class Order:
            x: int

        values: list[int] = field(default_factory=list)
        limit: int = 3

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Open) and self.limit == other.limit

        def __hash__(self) -> int:
            return self.limit

    return Point, Keyword, Open


CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "values": lambda p, k, o: (p(1, ("a",)), p(1).absent is NOTHING, p(1).names, o().values),
    "factory": lambda p, k, o: p(1).names is p(1).names,
    "missing": lambda p, k, o: p(),
    "unknown": lambda p, k, o: p(1, y=2),
    "validated": lambda p, k, o: p(-1),
    "keyword only": lambda p, k, o: k(2),
    "hash of a mutable field": lambda p, k, o: hash(p(1)),
    "frozen, deleted": lambda p, k, o: delattr(p(1), "x"),
    "class": lambda p, k, o: (p.count, o.limit, p.__match_args__, k.__match_args__, p.__name__),
    "fields": lambda p, k, o: [(f.name, f.type, f.repr, f.kw_only) for f in dataclasses.fields(p)],
    "others": lambda p, k, o: (
        p.__dataclass_params__.frozen,
        p.__init__.__qualname__,
        copy.copy(p(1)),
    ),
    "keyword": lambda p, k, o: k(size=2),
    "equal": lambda p, k, o: (p(1) == p(1), p(1) == p(2), p(1) == p(1, secret="t"), p(1) == 1),
    "own equality": lambda p, k, o: (o([1]) == o([2]), o(limit=1) == o(limit=2), hash(o(limit=9))),
    "hash": lambda p, k, o: hash(k(size=2)) == hash(k(size=2)),
    "frozen": lambda p, k, o: setattr(p(1), "x", 2),
    "slots": lambda p, k, o: (p.__slots__, hasattr(p(1), "__dict__"), hasattr(o(), "__dict__")),
    "open": lambda p, k, o: setattr(o(), "new", 2),
    "replace": lambda p, k, o: dataclasses.replace(p(1), x=4),
    "order": lambda p, k, o: (o.Order(1) < o.Order(2), o.Order(1) <= o.Order(1), o.Order(1) > 3),
    "deep copy": lambda p, k, o: copy.deepcopy(k(size=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_behaviour_is_the_standard_decorators(case: str) -> None:
    results = []
    for module in (dataclasses, lazy_dataclass):
        try:
            results.append(repr(CASES[case](*declare(module))))
        except Exception as error:  # noqa: BLE001  # the two raise the same
            results.append(f"{type(error).__name__}: {error}")
    assert results[0] == results[1]


@lazy(frozen=True, slots=True)
class Base:
    first: int
    second: int = 2


@lazy(frozen=True, slots=True)
class Derived(Base):
    second: int = 4
    third: int = 3

    def __repr__(self) -> str:
        return "derived " + Base.__repr__(self)


@lazy(frozen=True, slots=True, kw_only=True)
class Named(Base):
    fourth: int


@lazy(frozen=True)
class Unslotted(Base):
    """Has slots for the fields of its base, and a dictionary for its own."""

    fifth: str = "e"


class Plain(Base):
    """Isn't a dataclass itself."""

    other: int


def test_fields_are_inherited() -> None:
    assert dataclasses.astuple(Derived(1)) == (1, 4, 3)
    assert dataclasses.astuple(Base(1)) == (1, 2)
    assert dataclasses.astuple(Named(1, fourth=4)) == (1, 2, 4)
    unslotted = Unslotted(1, fifth="f")
    assert (dataclasses.astuple(unslotted), vars(unslotted)) == ((1, 2, "f"), {"fifth": "f"})
    assert Named.__match_args__ == ("first", "second")
    with pytest.raises(TypeError, match="positional arguments but 4 were given"):
        Named(1, 2, 4)  # type: ignore[call-arg]
    assert repr(Derived(1)) == "derived Derived(first=1, second=4)"
    plain = Plain(5)
    plain.other = 1
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        plain.first = 2  # type: ignore[misc]


def test_instances_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(Derived(7))) == Derived(7)


def test_its_functions_are_the_standard_ones() -> None:
    """On values, classes and what isn't a dataclass."""
    derived = Derived(1, third=[Base(2), (Base(3),), {"a": Base(4)}])  # type: ignore[arg-type]
    assert lazy_dataclass.asdict(derived) == dataclasses.asdict(derived)
    assert lazy_dataclass.replace(derived, second=9) == dataclasses.replace(derived, second=9)
    with pytest.raises(TypeError, match="unexpected keyword argument 'none'"):
        lazy_dataclass.replace(derived, none=1)  # type: ignore[call-arg]
    names = [field.name for field in dataclasses.fields(Derived)]
    assert [field.name for field in lazy_dataclass.fields(Derived)] == names
    for value in (Derived, derived, 3, int):
        assert lazy_dataclass.is_dataclass(value) == dataclasses.is_dataclass(value)


def test_a_class_is_compiled_when_it_is_used() -> None:
    """And needs nothing of the standard decorator, which takes long to import."""
    code = """
import sys
from trainctl.base.lazy_dataclass import dataclass
@dataclass(frozen=True)
class Lazy:
    x: int
compiled = [type(vars(Lazy)["__init__"]).__name__]
Lazy(1)
print(*compiled, type(vars(Lazy)["__init__"]).__name__, Lazy(1) == Lazy(1), "dataclasses" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["_Compiled", "function", "True", "False"]


def test_threads_that_use_a_class_first_at_once_find_the_same_methods() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):

            @lazy(frozen=True, slots=True)
            class Pair:
                first: int
                second: str = ""

            def use(number: int, pair: type[Any] = Pair) -> str:
                return f"{pair(number)!r} {hash(pair(1)) == hash(pair(1))} {pair(1) == pair(1)}"

            shown = each(use, range(4), 4)
            assert [text.partition(".Pair")[2] for text in shown] == [
                f"(first={n}, second='') True True" for n in range(4)
            ]
    finally:
        sys.setswitchinterval(interval)

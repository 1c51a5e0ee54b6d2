"""``typing.NamedTuple`` whose constructor is compiled when it is first called.

The standard one compiles a constructor and every annotation at import, which takes ten times as long as making a class.
"""

from __future__ import annotations

from _collections import _tuplegetter  # type: ignore[import-not-found]
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Tuple


class LazyNamedTuple(type):
    """The class of such types."""

    def __new__(
        cls, name: str, bases: Tuple[type, ...], namespace: Dict[str, Any]
    ) -> LazyNamedTuple:
        if any("_fields" in vars(base) for base in bases):  # a subclass declares no fields
            return type.__new__(cls, name, bases, namespace)
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        members = {field: _tuplegetter(index, None) for index, field in enumerate(fields)}
        members.update(__slots__=(), _fields=fields, __match_args__=fields)
        members.update(_field_defaults=defaults)
        return type.__new__(cls, name, bases, {**members, **namespace})


class _NamedTuple(tuple):  # type: ignore[type-arg]
    __slots__ = ()
    _fields: Tuple[str, ...]
    _field_defaults: Mapping[str, Any]

    def __new__(cls, *values: Any, **named: Any) -> Any:
        owner: Any = next(each for each in cls.__mro__ if "_fields" in vars(each))
        names = ", ".join(owner._fields)
        namespace = {"_new": tuple.__new__}
        exec(f"def __new__(cls, {names}): return _new(cls, ({names},))", namespace)  # noqa: S102  # of names of fields
        made: Any = namespace["__new__"]
        made.__qualname__ = f"{owner.__qualname__}.__new__"
        made.__defaults__ = tuple(owner._field_defaults.values())
        owner.__new__ = staticmethod(made)
        return made(cls, *values, **named)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        return cls(*values)

    def _asdict(self) -> Dict[str, Any]:
        return dict(zip(self._fields, self))

    def _replace(self, **changes: Any) -> Any:
        return type(self)(**{**self._asdict(), **changes})

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({shown})"

    def __getnewargs__(self) -> Tuple[Any, ...]:
        return tuple(self)


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    NamedTuple = type.__new__(LazyNamedTuple, "NamedTuple", (_NamedTuple,), {"__slots__": ()})

"""Read a valid section by the types of its fields, without pydantic.

To load pydantic takes longer than to read most manifests. What is written here decides only about values that are plainly
valid; it raises ``UndecidedValue`` for all others, about which pydantic decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from trainctl.base.lazy_dataclass import MISSING, fields
from trainctl.model.specs.checks import OTHERS, CheckedSection, ListCheck, ValueCheck, key_of

_Reader = Callable[[Any], Any]
_ATOMS = frozenset({str, int, bool, NoneType})


class UndecidedValue(Exception):
    """The value may be invalid, or needs a conversion."""


def read_section(kind: Any, value: Any) -> Any:
    """Return a value as pydantic would; raise UndecidedValue if it isn't plainly valid."""
    try:
        return _reader(kind)(value)
    except (ValueError, TypeError, KeyError) as why:  # a check refuses it
        raise UndecidedValue from why


@cache
def _reader(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _float
    if hint in _ATOMS:
        return _atom(hint)
    if origin is Annotated:
        return _checked(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        return _one_of([_reader(each) for each in arguments])
    if origin is Literal:
        return _literal(arguments)
    if origin in (dict, Mapping):
        return _mapping(*map(_reader, arguments))
    if isinstance(hint, type) and issubclass(hint, CheckedSection):
        return _section(hint)
    return _undecided


def _undecided(_: Any) -> Any:
    raise UndecidedValue


def _float(value: Any) -> float:
    if not isinstance(value, float) and type(value) is not int:
        raise UndecidedValue
    return float(value)  # without its spelling


def _atom(kind: Any) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise UndecidedValue
        return value

    return read


def _literal(values: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in values):
            raise UndecidedValue
        return value

    return read


def _one_of(readers: list[_Reader]) -> _Reader:
    """Read by the only alternative that takes the value, or that takes it as it is."""

    def read(value: Any) -> Any:
        taken = []
        for each in readers:
            try:
                taken.append(each(value))
            except UndecidedValue:
                continue
        if len(taken) > 1:
            taken = [each for each in taken if each is value]
        if len(taken) != 1:
            raise UndecidedValue
        return taken[0]

    return read


def _mapping(key: _Reader, entry: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise UndecidedValue
        return {key(name): entry(item) for name, item in value.items()}

    return read


def _checked(hint: Any, checks: tuple[Any, ...]) -> _Reader:
    base = _reader(hint)
    if get_origin(hint) is tuple and isinstance(checks[0], ListCheck):
        base, checks = _items(_reader(get_args(hint)[0]), checks[0].least), checks[1:]
    functions = [each.plain if isinstance(each, ValueCheck) else _undecided for each in checks]

    def read(value: Any) -> Any:
        value = base(value)
        for function in functions:
            value = function(value)
        return value

    return read


def _items(item: _Reader, least: int) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) < least:
            raise UndecidedValue
        return tuple(map(item, value))

    return read


def _section(kind: type[CheckedSection]) -> _Reader:
    names = {key_of(each): each.name for each in fields(kind)}  # type: ignore[arg-type]
    required = {
        each.name
        for each in fields(kind)  # type: ignore[arg-type]
        if each.default is MISSING and each.default_factory is MISSING
    }
    has_others = OTHERS in names
    hints = get_type_hints(kind, include_extras=True)
    readers: dict[str, _Reader] = {}  # of the keys that were read

    def read_field(key: str, item: Any) -> Any:
        if key not in readers:
            readers[key] = _reader(hints[names[key]])
        return readers[key](item)

    def read(value: Any) -> Any:
        if type(value) is not dict or OTHERS in value:
            raise UndecidedValue
        known: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, item in value.items():
            if key in names:
                known[names[key]] = read_field(key, item)
            elif has_others:
                others[key] = item
            else:
                raise UndecidedValue
        if has_others:
            known[names[OTHERS]] = read_field(OTHERS, others)
        if not required <= known.keys():
            raise UndecidedValue
        section = kind(**known)
        section.check_keys({*value.keys() - others.keys(), OTHERS} if has_others else value.keys())
        return section

    return read

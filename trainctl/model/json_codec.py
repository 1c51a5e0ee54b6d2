"""Conversion of dataclasses to JSON and back, by the types of their fields."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Self, TypeVar, Union, cast

from trainctl.base.lazy_dataclass import fields, is_dataclass
from trainctl.model.action import Action
from trainctl.model.address import Address

T = TypeVar("T")

OMIT_EMPTY = MappingProxyType({"omit_empty": True})
"""Field metadata: omit the field from JSON if it is None, False, 0 or an empty tuple."""

_Decoder = Callable[[Any], Any]

_DECODERS: Mapping[Any, _Decoder] = {
    Address: Address.parse,
    Action: lambda name: Action[name.upper()],
}
_EMPTY = (None, False, ())
_ATOMS = frozenset({str, int, float, bool, NoneType})


def to_json(value: Any) -> Any:
    """Convert to JSON: addresses to text, actions to names, sequences to lists.

    Omits fields with ``compare=False``.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if is_dataclass(kind):
        form = {}
        for name, needed in _members(kind):
            member = getattr(value, name)
            if needed or member not in _EMPTY:
                form[name] = member if type(member) in _ATOMS else to_json(member)
        return form
    if isinstance(value, Address | Path):
        return str(value)
    if isinstance(value, Action):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(member) for member in value]
    return value


@lru_cache(100)
def shared_json(value: Hashable) -> Any:
    """Return the JSON form of a value that many resources share; it must not be changed."""
    return to_json(value)


def from_json(kind: type[T], value: Any) -> T:
    """Convert the JSON form back to a dataclass, ignoring unknown keys.

    Raises TypeError or ValueError if the value doesn't fit.
    """
    return cast(T, _decoder(cast(Hashable, kind))(value))


class JsonSerializable:
    """Base of dataclasses that the state stores as JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(to_json(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Convert the JSON form back."""
        return from_json(cls, value)


@cache
def _members(kind: type) -> list[tuple[str, bool]]:
    """Return the fields in the JSON form, and whether they are required there."""
    return [
        (field.name, "omit_empty" not in field.metadata) for field in fields(kind) if field.compare
    ]


def _identity(value: Any) -> Any:
    return value


@cache
def _decoder(hint: Any) -> _Decoder:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _decoder(args[0])
    if origin in (Union, UnionType):  # of several alternatives, one needs decoding
        decoders = [_decoder(each) for each in args if each is not NoneType]
        decode = next((each for each in decoders if each is not _identity), _identity)
        if decode is _identity:
            return _identity
        if len(decoders) > 1:
            return lambda value: decode(value) if isinstance(value, Mapping) else value
        return lambda value: None if value is None else decode(value)
    if origin is Sequence or (origin is tuple and args[1:] == (...,)):
        member = _decoder(args[0])
        return tuple if member is _identity else lambda value: tuple(map(member, value))
    if origin is tuple:
        members = [_decoder(each) for each in args]
        return lambda value: tuple(
            decode(item) for decode, item in zip(members, value, strict=True)
        )
    if origin in (Mapping, dict):
        key, entry = map(_decoder, args)
        if key is entry is _identity:
            return _identity
        return lambda value: {key(name): entry(item) for name, item in value.items()}
    return _DECODERS[hint] if hint in _DECODERS else _class(hint)


def _class(hint: Any) -> _Decoder:
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass(hint)
    return hint if isinstance(hint, type) and issubclass(hint, Enum | Path) else _identity


def _annotations(kind: type) -> Mapping[str, str]:
    found: Mapping[str, str] = vars(kind).get("__annotations__", {})
    return found


@cache
def _type(module: str, text: str) -> Any:
    """Return the type of an annotation; many fields share one, and ``typing.get_type_hints`` compiles each."""
    return eval(text, vars(sys.modules[module]))  # noqa: S307  # of our own source


def _dataclass(kind: type) -> _Decoder:
    owners = {name: base for base in reversed(kind.__mro__) for name in _annotations(base)}
    decoders = {
        field.name: _decoder(
            _type(owners[field.name].__module__, _annotations(owners[field.name])[field.name])
        )
        for field in fields(kind)
        if field.init
    }
    special = [(name, decode) for name, decode in decoders.items() if decode is not _identity]

    def decode(value: Mapping[str, Any]) -> Any:
        known = {name: member for name, member in value.items() if name in decoders}
        for name, decode in special:
            if name in known:
                known[name] = decode(known[name])
        return kind(**known)

    return decode

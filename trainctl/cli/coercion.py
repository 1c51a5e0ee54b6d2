"""Words to values, for the few types that flags have.

Typer builds a pydantic adapter for every parameter, which costs a fifth of a second at each start. Text, numbers,
paths and choices need none; whatever else a parameter may be is left to typer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand

_Parameter: TypeAlias = TyperArgument | TyperOption
_KINDS = {str: "text", int: "a whole number", float: "a number", Path: "a path"}


def lighten(command: ClickCommand) -> None:
    """Read the command's plain parameters here instead of with pydantic."""
    help_option = command.get_help_option(typer.Context(command, **command.context_settings))
    if help_option is not None:
        help_option.default = False  # None would go through pydantic to become None
    for parameter in command.params:
        if not isinstance(parameter, _Parameter) or parameter.min is not None:
            continue
        make = _maker(parameter)
        if make is not None:
            parameter.process_value = partial(_process, parameter, make)  # type: ignore[method-assign]


def _maker(parameter: _Parameter) -> Callable[[Any], Any] | None:
    annotation: Any = parameter.type_descriptor.annotation
    made = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    plain = made in _KINDS or (isinstance(made, type) and issubclass(made, StrEnum))
    return made if plain else None


def _process(
    parameter: _Parameter, make: Callable[[Any], Any], ctx: typer.Context, value: Any
) -> Any:
    if value is None or value == () or value == []:
        if parameter.required:
            return type(parameter).process_value(parameter, ctx, None)
        return [] if _many(parameter) else None
    if _many(parameter):
        return [_one(parameter, make, ctx, word) for word in value]
    return _one(parameter, make, ctx, value)


def _many(parameter: _Parameter) -> bool:
    return parameter.multiple or parameter.nargs == -1


def _one(parameter: _Parameter, make: Any, ctx: typer.Context, word: Any) -> Any:
    try:
        return make(word)
    except ValueError:
        wanted = _KINDS.get(make) or "one of " + ", ".join(make)
        raise typer.BadParameter(f"{word!r} is not {wanted}", ctx=ctx, param=parameter) from None

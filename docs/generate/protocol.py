"""``docs/reference/protocol.md``, from the methods and types in ``trainctl.base.protocol``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import formatannotation, getsource
from itertools import pairwise
from types import ModuleType
from typing import NotRequired, get_args, get_origin, get_type_hints

from docs.generate.markdown import code, table, text_of
from trainctl.base.lazy_typed_dict import LazyTypedDict
from trainctl.base.protocol import host, method, mirrors, runs, training, weights
from trainctl.base.protocol.method import Method

_GROUPS = (method, runs, host, weights, training, mirrors)
METHODS = {
    item.name: item
    for group in _GROUPS
    for item in vars(group).values()
    if isinstance(item, Method)
}
"""All methods of the node program, by name."""

_INTRODUCTION = """\
# Protocol of the node program

trainctl calls the node program on a host over SSH or locally; short calls share a process.
Requests and responses are JSON objects. A method whose response is `bytes` prints raw output.
Keys marked `?` may be absent.
"""


def page() -> str:
    """Return the text of the page."""
    return text_of([_INTRODUCTION, *(line for group in _GROUPS for line in _group(group))])


def _group(module: ModuleType) -> Iterator[str]:
    yield f"## {(module.__doc__ or '').splitlines()[0].rstrip('.')}\n"
    documented = _documented(module)
    rows = [
        (
            code(one.name),
            code(_words(one.request)),
            code(_words(one.answer)),
            " ".join(documented[name].split()),
        )
        for name, one in vars(module).items()
        if isinstance(one, Method)
    ]
    if rows:
        yield from table(("method", "request", "response", "description"), rows)
    for name, value in vars(module).items():
        if (
            isinstance(value, LazyTypedDict)
            and value.__module__ == module.__name__
            and name[0] != "_"
        ):
            known = {name: item for group in _GROUPS for name, item in vars(group).items()}
            hints = get_type_hints(value, localns=known, include_extras=True)
            fields = [_field(value, key, hint) for key, hint in hints.items()]
            yield f"`{name}`: {', '.join(fields) or 'no keys'}."
            yield f"{documented.get(name, '')}\n".lstrip("\n")


def _field(owner: type, key: str, hint: object) -> str:
    optional = "?" if key in vars(owner)["__optional_keys__"] else ""
    if get_origin(hint) is NotRequired:  # in a module whose annotations are not evaluated
        optional, (hint,) = "?", get_args(hint)
    return f"`{key}{optional}: {_words(hint)}`"


def _words(hint: object) -> str:
    """A type without the modules of its parts."""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", formatannotation(hint))


def _documented(module: ModuleType) -> dict[str, str]:
    """The docstrings of types and methods by name; those of assignments follow them."""
    body = ast.parse(getsource(module)).body
    found = {
        one.name: ast.get_docstring(one) or "" for one in body if isinstance(one, ast.ClassDef)
    }
    for one, following in pairwise(body):
        match one, following:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str(text))):
                found[name] = text
    return {name: text.replace("``", "`") for name, text in found.items()}

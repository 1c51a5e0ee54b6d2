"""``dataclasses.dataclass`` whose methods are compiled when a class is first used.

A command imports some 250 dataclasses and makes instances of a quarter of them; the standard decorator compiles up to seven
functions for each at import, a quarter of a plan's time. Here a class gets its slots at once; the standard decorator describes
its fields and compiles its methods when one of them is looked up. What users of the class see is the standard's, but
``InitVar`` isn't supported, and all classes of a line of descent are lazy.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

_SPEC = "__lazy_spec__"
"""Where a class keeps its fields by name, and its options."""
_DESCRIPTION = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_COMPARISON = ("__eq__", "__hash__", "__repr__")
_FACTORY = object()


class _Field:
    """A field as its class declares it."""

    __slots__ = ("annotation", "default", "kw_only")

    def __init__(self, annotation: Any, default: Any, kw_only: bool) -> None:
        self.annotation = annotation
        self.default = default
        self.kw_only = kw_only


class _Compiled:
    """A member that is made when it is first looked up."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._class = owner
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if vars(self._class)[self._name] is self:
            if self._name == "__init__":
                self._class.__init__ = _compile_init(self._class)
            else:
                _complete(self._class, compares=self._name in _COMPARISON)
        member = vars(self._class)[self._name]
        return member.__get__(instance, owner) if hasattr(member, "__get__") else member


def _complete(cls: type, *, compares: bool) -> None:
    """Replace members of a class by those of a class with the same fields that the standard decorator made."""
    fields, options = vars(cls)[_SPEC]
    # A class without docstring would get its signature as one.
    body: Dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__name__}
    body["__annotations__"] = {name: field.annotation for name, field in fields.items()}
    for name, field in fields.items():
        default = field.default
        if field.kw_only and not isinstance(default, dataclasses.Field):
            default = dataclasses.field(default=default)
        if isinstance(default, dataclasses.Field):
            default = copy.copy(default)  # the decorator completes the fields that it is given
            if field.kw_only:
                default.kw_only = True
        if default is not dataclasses.MISSING:
            body[name] = default
    if not compares:  # to be frozen would cost two functions that aren't used
        options = {name: value for name, value in options.items() if name != "frozen"}
    standard = dataclasses.dataclass(init=False, eq=compares, repr=compares, **options)
    completed: Any = standard(type(cls.__name__, (), body))
    if not compares:
        completed.__dataclass_params__.frozen = _is_frozen(cls)
    for name in _COMPARISON if compares else _DESCRIPTION:
        if isinstance(vars(cls).get(name), _Compiled):
            setattr(cls, name, vars(completed).get(name))


def _compile_init(cls: type) -> Callable[..., None]:
    """Return the ``__init__`` of the standard decorator, which would compile two functions more that aren't used."""
    known: Dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    parameters: List[str] = ["self"]
    keywords: List[str] = []
    lines: List[str] = []
    for field in dataclasses.fields(cls):
        name = value = field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            default = value = f"_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            default, value = "_FACTORY", f"_make_{name}()"
        if field.init:
            value = f"{value} if {name} is _FACTORY else {name}" if default == "_FACTORY" else name
            place = keywords if getattr(field, "kw_only", False) else parameters
            place.append(f"{name}={default}" if default else name)
        elif not default:
            continue
        setter = f"_set(self, {name!r}, {value})" if _is_frozen(cls) else f"self.{name} = {value}"
        lines.append(setter)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    exec("\n ".join([f"def __init__({signature}):", *(lines or ["pass"])]), known)  # noqa: S102  # of names of fields
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _is_frozen(cls: type) -> bool:
    frozen: bool = vars(cls)[_SPEC][1].get("frozen", False)
    return frozen


def _lazy_dataclass(cls: Optional[type] = None, **options: bool) -> Any:
    if cls is None:
        return lambda cls: _lazy_dataclass(cls, **options)
    if not options.keys() <= {"frozen", "slots", "kw_only"}:
        return dataclasses.dataclass(**options)(cls)
    namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    inherited: Dict[str, _Field] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base)[_SPEC][0] if _SPEC in vars(base) else {})
    kw_only = options.pop("kw_only", False)
    own: Dict[str, _Field] = {}
    for name, annotation in namespace.get("__annotations__", {}).items():
        if not str(annotation).startswith("ClassVar"):
            own[name] = _Field(annotation, namespace.pop(name, dataclasses.MISSING), kw_only)
    frozen = options.get("frozen", False)
    members: Dict[str, Any] = {
        name: _Compiled() for name in ("__init__", *_DESCRIPTION, *_COMPARISON)
    }
    if "__eq__" in namespace and namespace["__hash__"] is None:
        del namespace["__hash__"]  # Python has set it, not the class
    if not frozen:
        members["__hash__"] = None
    else:
        members.update(__setattr__=_set, __delattr__=_delete)
    if options.pop("slots", False):
        namespace["__slots__"] = tuple(name for name in own if name not in inherited)
        if frozen:
            members.update(__getstate__=_get_state, __setstate__=_set_state)
    else:
        namespace.update(_class_values(own))
    spec = ({**inherited, **own}, options)
    namespace = {**members, **namespace, _SPEC: spec, "__qualname__": cls.__qualname__}
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _class_values(fields: Dict[str, _Field]) -> Dict[str, Any]:
    """Return the attributes of a class without slots: the defaults of its fields."""
    values = {name: field.default for name, field in fields.items()}
    values = {k: v.default if isinstance(v, dataclasses.Field) else v for k, v in values.items()}
    return {name: value for name, value in values.items() if value is not dataclasses.MISSING}


def _set(self: Any, name: str, value: Any) -> None:
    if _is_kept(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _is_kept(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_kept(self: Any, name: str) -> bool:
    """Return whether an attribute of a frozen class can't change: only a subclass that isn't frozen has others."""
    frozen = next(base for base in type(self).__mro__ if _SPEC in vars(base))
    return frozen is type(self) or name in vars(frozen)[_SPEC][0]


def _get_state(self: Any) -> List[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: List[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, field.name, value)  # it is frozen


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _lazy_dataclass

"""Dataclasses whose methods are compiled when they are first used, and the functions for them.

A command imports some 250 dataclasses and makes instances of a quarter of them; the standard decorator compiles up to seven
functions for each at import, and its module imports ``inspect`` and Python's parser: a third of a plan's time. Here a class gets
its slots at once, and the rest when one of its methods is looked up. What users of the class see is the standard's, and the
standard's functions work on it, but ``InitVar`` isn't supported, and all classes of a line of descent are lazy.
"""

from __future__ import annotations

from types import MappingProxyType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

MISSING: Any = type("MISSING", (), {"__slots__": ()})()
"""Stands for a default that a field doesn't have."""

_SPEC = "__lazy_spec__"
"""Where a class keeps its fields by name, and its options."""
_DESCRIPTION = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_FACTORY = object()
_INITIAL: Dict[type, List[str]] = {}
"""Names of the fields that the constructor of a class takes."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class LazyField:
    """A field: its name, its annotation, and what ``field`` is given."""

    name = type = ""
    default = default_factory = MISSING
    init = repr = compare = True
    kw_only = False
    metadata = _NOTHING

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)

    def standard(self) -> Any:
        """Return it as the standard decorator takes it."""
        import dataclasses

        options = {name: getattr(self, name) for name in ("init", "repr", "compare", "metadata")}
        for name in ("default", "default_factory"):
            if getattr(self, name) is not MISSING:
                options[name] = getattr(self, name)
        described: Any = dataclasses.field(**options)
        if self.kw_only:  # unknown before Python 3.10
            described.kw_only = True
        return described


class _Compiled:
    """A member that is made when it is first looked up, also by several threads at once."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._class = owner
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if vars(self._class)[self._name] is self:
            if self._name in _DESCRIPTION:
                _describe(self._class)
            else:
                setattr(self._class, self._name, _compile(self._class, self._name))
        member = vars(self._class)[self._name]
        return member.__get__(instance, owner) if hasattr(member, "__get__") else member


def _describe(cls: type) -> None:
    """Give a class what the standard decorator says about one with the same fields."""
    import dataclasses

    own = vars(cls)[_SPEC][0]
    # A class without docstring would get its signature as one.
    body: Dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__name__}
    body["__annotations__"] = {name: field.type for name, field in own.items()}
    body.update({name: field.standard() for name, field in own.items()})
    standard = dataclasses.dataclass(init=False, eq=False, repr=False)
    described: Any = standard(type(cls.__name__, (), body))
    described.__dataclass_params__.frozen = _is_frozen(cls)
    for name in _DESCRIPTION:
        if isinstance(vars(cls).get(name), _Compiled):
            setattr(cls, name, vars(described).get(name))


def _compile(cls: type, name: str) -> Callable[..., Any]:
    known: Dict[str, Any] = {}
    if name == "__init__":
        code = _init_code(cls, known)
    elif name == "__repr__":
        shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in fields(cls) if f.repr)
        code = f"(self):\n return f'{{type(self).__qualname__}}({shown})'"
    else:
        compared = [f.name for f in fields(cls) if f.compare]
        mine, other = ("".join(f"{owner}.{f}, " for f in compared) for owner in ("self", "other"))
        code = f"(self):\n return hash(({mine}))"
        if name != "__hash__":
            sign = _ORDER.get(name, "==")
            code = f"(self, other):\n if other.__class__ is not self.__class__: return NotImplemented\n return ({mine}) {sign} ({other})"
    exec(f"def {name}{code}", known)  # noqa: S102  # of names of fields
    made: Callable[..., Any] = known[name]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _init_code(cls: type, known: Dict[str, Any]) -> str:
    known["_FACTORY"] = _FACTORY
    parameters: List[str] = ["self"]
    keywords: List[str] = []
    lines: List[str] = []
    for field in fields(cls):
        name = value = field.name
        default = ""
        if field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            default = value = f"_default_{name}"
        elif field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            default, value = "_FACTORY", f"_make_{name}()"
        if field.init:
            value = f"{value} if {name} is _FACTORY else {name}" if default == "_FACTORY" else name
            place = keywords if field.kw_only else parameters
            place.append(f"{name}={default}" if default else name)
        elif not default:
            continue
        setter = f"self.{name} = {value}"
        if _is_frozen(cls):
            # A third of the time of object.__setattr__.
            slot = getattr(cls, name, None)
            if isinstance(slot, MemberDescriptorType):
                known[f"_set_{name}"] = slot.__set__
                setter = f"_set_{name}(self, {value})"
            else:
                setter = f"_own[{name!r}] = {value}"
        lines.append(setter)
    if any(line.startswith("_own") for line in lines):
        lines.insert(0, "_own = self.__dict__")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    return "\n ".join([f"({signature}):", *(lines or ["pass"])])


def _is_frozen(cls: type) -> bool:
    frozen: bool = vars(cls)[_SPEC][1].get("frozen", False)
    return frozen


def _lazy_dataclass(cls: Optional[type] = None, **options: bool) -> Any:
    if cls is None:
        return lambda cls: _lazy_dataclass(cls, **options)
    namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    inherited: Dict[str, LazyField] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base)[_SPEC][0] if _SPEC in vars(base) else {})
    own = _own_fields(namespace, options.get("kw_only", False))
    frozen = options.get("frozen", False)
    members: Dict[str, Any] = {"__init__": _Compiled(), "__repr__": _Compiled()}
    members.update({name: _Compiled() for name in _DESCRIPTION})
    if options.get("eq", True):
        if "__eq__" in namespace and namespace["__hash__"] is None:
            del namespace["__hash__"]  # Python has set it, not the class
        members.update(__eq__=_Compiled(), __hash__=_Compiled() if frozen else None)
    if options.get("order"):
        members.update({name: _Compiled() for name in _ORDER})
    if frozen:
        members.update(__setattr__=_set, __delattr__=_delete)
    if options.get("slots"):
        namespace["__slots__"] = tuple(name for name in own if name not in inherited)
        if frozen:
            members.update(__getstate__=_get_state, __setstate__=_set_state)
    else:  # a class without slots has the defaults of its fields
        namespace.update({k: f.default for k, f in own.items() if f.default is not MISSING})
    spec = ({**inherited, **own}, options)
    namespace = {**members, **namespace, _SPEC: spec, "__qualname__": cls.__qualname__}
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _own_fields(namespace: Dict[str, Any], kw_only: bool) -> Dict[str, LazyField]:
    """Take the fields that a class declares, with their defaults, out of its attributes."""
    own: Dict[str, LazyField] = {}
    for name, annotation in namespace.get("__annotations__", {}).items():
        if not str(annotation).startswith("ClassVar"):
            default = namespace.pop(name, MISSING)
            described = default if isinstance(default, LazyField) else LazyField(default=default)
            described.__dict__.update(name=name, type=annotation, kw_only=kw_only)
            own[name] = described
    return own


def _set(self: Any, name: str, value: Any) -> None:
    if _is_kept(self, name):
        raise _frozen_error(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _is_kept(self, name):
        raise _frozen_error(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _frozen_error(text: str) -> AttributeError:
    from dataclasses import FrozenInstanceError

    return FrozenInstanceError(text)


def _is_kept(self: Any, name: str) -> bool:
    """Return whether an attribute of a frozen class can't change: only a subclass that isn't frozen has others."""
    frozen = next(base for base in type(self).__mro__ if _SPEC in vars(base))
    return frozen is type(self) or name in vars(frozen)[_SPEC][0]


def _get_state(self: Any) -> List[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: List[Any]) -> None:
    for field, value in zip(fields(self), state):
        object.__setattr__(self, field.name, value)  # it is frozen


def _is_lazy(value: Any) -> bool:
    return hasattr(value if isinstance(value, type) else type(value), _SPEC)


def _fields(value: Any) -> Tuple[LazyField, ...]:
    return tuple(getattr(value, _SPEC)[0].values())


def _replace(value: Any, /, **changes: Any) -> Any:
    kind = type(value)
    if kind not in _INITIAL:
        _INITIAL[kind] = [field.name for field in _fields(kind) if field.init]
    return kind(**{**{name: getattr(value, name) for name in _INITIAL[kind]}, **changes})


def _as_dict(value: Any) -> Any:
    if _is_lazy(value):
        return {field.name: _as_dict(getattr(value, field.name)) for field in _fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_as_dict, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_dict, value))
    if isinstance(value, dict):
        return {_as_dict(key): _as_dict(member) for key, member in value.items()}
    return value


if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace
else:
    dataclass, field, fields, is_dataclass = _lazy_dataclass, LazyField, _fields, _is_lazy
    asdict, replace = _as_dict, _replace

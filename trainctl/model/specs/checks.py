"""Sections of a manifest as dataclasses, with checks that only reading a manifest needs.

pydantic finds the checks in the annotations; it is loaded by the reader of manifests, and by nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args

from trainctl.base.lazy_dataclass import dataclass, field, fields
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import parse_duration, parse_size
from trainctl.model.address import NAME

if TYPE_CHECKING:
    from dataclasses import Field

    from pydantic_core import CoreSchema, PydanticCustomError

T = TypeVar("T")

TEXT = "in one word"
OBJECT = "in full"
"""Tags of values with two forms. They appear in pydantic's paths and must not equal a key."""
OTHERS = "other keys"
"""Key of the field that has the keys of any name. It appears in pydantic's paths, too."""


def named(name: str) -> dict[str, str]:
    """Return the metadata of a field that has this key in the manifest."""
    return {"key": name}


def key_of(field: Field[Any]) -> str:
    """Return the key of a field in the manifest."""
    return str(field.metadata.get("key", field.name))


class CheckedSection:
    """Base of frozen dataclasses that are sections: a mapping with known keys.

    Docstrings of fields are their descriptions.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar = {
        "extra": "forbid",
        "strict": True,
        "hide_input_in_errors": True,
    }

    def check_keys(self, written: Set[str]) -> None:
        """Raise a ``validation_error`` if keys contradict; ``written`` are those in the manifest."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: Callable[[Any], CoreSchema]
    ) -> CoreSchema:
        """Accept a mapping, with strict types of its values."""
        schema: Any = handler(source)
        schema["strict"] = False  # strictly, only an instance is one
        keys = {each.name: key_of(each) for each in fields(cast("Any", cls))}
        for each in schema["schema"]["fields"]:
            each["validation_alias"] = keys[each["name"]]
        has_others = OTHERS in keys.values()
        if cls.check_keys is CheckedSection.check_keys and not has_others:
            return schema  # type: ignore[no-any-return]
        from pydantic_core import core_schema

        def checked(value: Any, validate: Callable[[Any], CheckedSection]) -> CheckedSection:
            if has_others and isinstance(value, dict):
                known = {name: item for name, item in value.items() if name in keys.values()}
                others = {name: item for name, item in value.items() if name not in known}
                value = {**known, OTHERS: others}
            section = validate(value)
            section.check_keys(value.keys() if isinstance(value, dict) else frozenset())
            return section

        return core_schema.no_info_wrap_validator_function(checked, schema)


def converted(section: object, kind: Callable[..., T], **changes: Any) -> T:
    """Return a dataclass with the section's fields that it has, too, and with these changes."""
    own = {each.name for each in fields(cast("Any", section))}
    names = (each.name for each in fields(cast("Any", kind)) if each.init)
    return kind(**{name: getattr(section, name) for name in names if name in own} | changes)


def validation_error(summary: str, detail: str, *, code: str) -> PydanticCustomError:
    """Create the error to raise in a check."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError(
        "manifest", "{summary}", {"summary": summary, "detail": detail, "code": code}
    )


class ValueCheck:
    """An annotation that pydantic asks for the schema of a value.

    ``plain``: returns the value of a valid value of the annotated type; raises ValueError if it may be invalid.
    """

    def __init__(
        self,
        build: Callable[[Any, Any], Any] = lambda source, handler: handler(source),
        json_schema: dict[str, Any] | None = None,
        plain: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._build = build
        self._json_schema = json_schema or {}
        self.plain = plain

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return self._build(source, handler)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), **self._json_schema}


def check(function: Callable[[Any], Any], **json_schema: Any) -> ValueCheck:
    """Replace a value by what the function returns; it may raise a ``validation_error``."""

    def build(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(function, handler(source))

    return ValueCheck(build, json_schema, function)


def require(
    test: Callable[[Any], object], summary: str, detail: str, code: str, **json_schema: Any
) -> ValueCheck:
    """Refuse values that don't pass a test."""

    def checked(value: Any) -> Any:
        if not test(value):
            raise validation_error(summary, detail, code=code)
        return value

    return check(checked, **json_schema)


def prepared(function: Callable[[Any], Any]) -> ValueCheck:
    """Replace a value before it is checked."""

    def build(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(function, handler(source))

    return ValueCheck(build, plain=_not_plain)


def _not_plain(_: Any) -> Any:
    raise ValueError("only pydantic converts a value before its type is checked")


_COMPARISONS: Mapping[str, Callable[[Any, Any], object]] = {
    "ge": lambda value, limit: value >= limit,
    "le": lambda value, limit: value <= limit,
    "gt": lambda value, limit: value > limit,
}


def limits(**of_schema: Any) -> ValueCheck:
    """Limit a value by keys of its core schema: ``ge``, ``le``, ``gt`` of numbers, ``pattern`` of text."""

    def within(value: Any) -> Any:
        for name, limit in of_schema.items():
            if name == "pattern":
                valid: object = "\n" not in value and re.search(limit, value)
            elif name == "min_length":
                valid = len(value) >= limit
            else:
                valid = _COMPARISONS[name](value, limit)
            if not valid:
                raise ValueError(name)
        return value

    return ValueCheck(lambda source, handler: {**handler(source), **of_schema}, plain=within)


def described(**json_schema: Any) -> ValueCheck:
    """Replace keys of the JSON Schema."""
    return ValueCheck(json_schema=json_schema)


class ListCheck(ValueCheck):
    """An annotation of a tuple that is written as a list of at least so many items."""

    def __init__(self, build: Callable[[Any, Any], Any], least: int) -> None:
        super().__init__(build)
        self.least = least


def listed(*, least: int | None = None) -> ValueCheck:
    """Read a tuple from a list of at least so many items."""

    def build(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        items = handler.generate_schema(get_args(source)[0])
        return core_schema.no_info_after_validator_function(
            tuple, core_schema.list_schema(items, min_length=least)
        )

    return ListCheck(build, least or 0)


def _text_or_object(source: Any, handler: Any) -> Any:
    from pydantic_core import core_schema

    text, section = get_args(source)
    choices = {TEXT: handler.generate_schema(text), OBJECT: handler.generate_schema(section)}
    return core_schema.tagged_union_schema(
        choices, discriminator=lambda value: TEXT if isinstance(value, str) else OBJECT
    )


TEXT_OR_OBJECT = ValueCheck(_text_or_object)
"""Reads a union of text and a section; errors are those of the form that is written."""


_SIZES = "Use for example 500GB, 2TB or 64Gi."
_DURATIONS = "Use for example 30s, 15m, 2h or 1d12h."
_LONGEST_SECONDS = 10 * 366 * 86_400


def _size(value: int | str) -> int | str:
    try:
        size = parse_size(value)
    except ValueError:
        raise validation_error("not a size", _SIZES, code="invalid-size") from None
    if size <= 0:
        raise validation_error("size must be positive", _SIZES, code="invalid-size")
    return value


def _duration(value: int | float | str) -> int | float | str:
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise validation_error("not a duration", _DURATIONS, code="invalid-duration") from None
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise validation_error(
            "duration must be between 0 and ten years", _DURATIONS, code="invalid-duration"
        )
    return value


LONGEST_NAME = 128
NAME_ADVICE = "Use printable text of at most 128 characters."
Name = Annotated[str, limits(pattern=f"^{NAME.pattern}$")]
"""A name in an address."""

DisplayName = Annotated[
    str,
    require(
        lambda name: name.strip() and len(name) <= LONGEST_NAME and name.isprintable(),
        "invalid name",
        NAME_ADVICE,
        "invalid-name",
        minLength=1,
        maxLength=LONGEST_NAME,
    ),
]
"""A name as people write it; ``model.address.slug`` is the name in addresses."""

_AS_WRITTEN = described(pattern=f"^.{{1,{LONGEST_NAME}}}$")
ProjectName = Annotated[Name, _AS_WRITTEN]
"""A name of a project in addresses; in a file, a ``DisplayName``."""
JobName = Annotated[str, limits(pattern=rf'^{NAME.pattern}(\[".*"\])?$'), _AS_WRITTEN]
"""A name of a job in addresses, for jobs of a matrix with the key in brackets; in a file, a ``DisplayName``."""

Size = Annotated[int | str, check(_size)]
"""Bytes, as a number or as text such as 500GB or 64Gi; parse with ``parse_size``."""

Duration = Annotated[int | float | str, check(_duration)]
"""Seconds, as a number or as text such as 90s, 15m, 2h or 1d12h; parse with ``parse_duration``."""

BoundedDuration = Annotated[
    Duration,
    require(
        parse_duration,
        "duration must be positive",
        "Remove the key for no limit, or use for example 30s, 15m, 2h or 1d12h.",
        "invalid-duration",
    ),
]
"""A positive duration."""

Text = Annotated[
    str,
    require(
        str.strip, "value is empty", "Set a value, or remove the key.", "empty-value", minLength=1
    ),
]
"""Non-empty text."""
Texts = Annotated[tuple[Text, ...], listed()]
SomeTexts = Annotated[tuple[Text, ...], listed(least=1)]
"""At least one."""

Count = Annotated[int, limits(ge=1)]
"""At least 1."""

Labels = dict[str, str]


_CONTROL = compile_lazily(r"[\x00-\x1f\x7f]")
_RESERVED_DIRECTORIES = frozenset(
    {"/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/run", "/sbin", "/srv"}
    | {"/tmp", "/usr", "/var"}  # noqa: S108  (compared with, never written to)
)
_RESERVED_TREES = ("/proc", "/sys", "/dev")


class InvalidMount(ValueError):
    """An invalid mount location; ``detail`` says what to write."""

    def __init__(self, summary: str, detail: str) -> None:
        super().__init__(summary)
        self.detail = detail


def normalize_mount(text: str) -> str:
    """Normalize a mount location; raise InvalidMount if it is not allowed."""
    example = "Use for example /app/models/NAME, or weights/NAME below the working directory."
    if _CONTROL.search(text):
        raise InvalidMount("control characters are not allowed in a mount location", example)
    parts = [part for part in text.split("/") if part]
    if not parts:
        raise InvalidMount("the root directory is not a valid mount location", example)
    if ".." in parts or "." in parts:
        raise InvalidMount("'.' and '..' are not allowed in a mount location", example)
    location = ("/" if text.startswith("/") else "") + "/".join(parts)
    if location in _RESERVED_DIRECTORIES or any(
        f"{location}/".startswith(f"{top}/") for top in _RESERVED_TREES
    ):
        raise InvalidMount(f"a mount on {location} would hide system files", example)
    if parts[0].startswith("~"):
        raise InvalidMount("'~' is not expanded in a mount location", example)
    return location


def _mount(text: str) -> str:
    try:
        return normalize_mount(text)
    except InvalidMount as why:
        raise validation_error(str(why), why.detail, code="invalid-mount") from None


MountLocation = Annotated[str, check(_mount, minLength=1)]


@dataclass(frozen=True, slots=True)
class SecretReference(CheckedSection):
    """A secret by name."""

    secret: Name
    """Name of a secret declared in ``secrets``."""


@dataclass(frozen=True, slots=True)
class Lifecycle(CheckedSection):
    """Lifecycle settings of a resource."""

    prevent_destroy: bool = False
    """Refuse plans that destroy or replace this resource. Kept in the state, so it also holds
    after the block is removed."""
    ignore_changes: Texts = field(default_factory=tuple)
    """Attributes whose changes are ignored, for example ``compute``."""


RerunCause = Literal["config", "code", "weights"]


@dataclass(frozen=True, slots=True)
class JobLifecycle(Lifecycle):
    """Lifecycle settings of a job."""

    rerun_on: Annotated[tuple[RerunCause, ...], listed()] = field(
        default_factory=lambda: ("config",)
    )
    """Changes that make a job run again; by default ``config``."""


DEFAULT_LIFECYCLE = JobLifecycle()
"""Shared by the resources that set nothing else, which are most."""

"""Keys of a manifest by path, from its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.model.diagnostics import nearest

ANY = "*"
"""Placeholder in a path for a name chosen by the user."""

TYPES = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
"""Types of JSON Schema in words."""

_FORMS = ("anyOf", "oneOf", "if")
"""Keywords of values with several forms."""

Schema = Mapping[str, Any]
Steps = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestField:
    """One key; ``keys`` are those directly below, ``default`` may be None.

    Items of lists have no step of their own: ``jobs.*.weights.source``.
    """

    steps: Steps
    type: str
    meaning: str
    required: bool
    default: Any
    keys: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path as text, for example ``jobs.*.runtime``."""
        return ".".join(self.steps)


def fields(schema: Schema) -> dict[Steps, ManifestField]:
    """Return all fields by path, parents before children."""
    by_path: dict[Steps, ManifestField] = {}
    for steps, entry, required in _below((), schema, schema, ()):
        by_path.setdefault(steps, _field(steps, entry, required, schema))
    return by_path


def find(query: str, known: Mapping[Steps, ManifestField]) -> list[ManifestField]:
    """Return the field at a path, else all fields whose path ends with it."""
    path = tuple(step.split("[")[0] for step in query.split(".") if step)
    exact = [field for steps, field in known.items() if _matches(path, steps)]
    ends = [
        field
        for steps, field in known.items()
        if path[-1:] == steps[-1:] and _matches(path, steps[-len(path) :])
    ]
    return exact or ends


def nearest_path(query: str, known: Mapping[Steps, ManifestField]) -> str | None:
    """Return the most similar path, below the same parent if possible."""
    *above, last = query.split(".")
    for parent in find(".".join(above), known) if above else ():
        similar = nearest(last, parent.keys)
        if similar is not None:
            return f"{parent.path}.{similar}"
    similar = nearest(last, {steps[-1] for steps in known if steps[-1] != ANY})
    return next((field.path for steps, field in known.items() if steps[-1] == similar), None)


def _matches(path: Steps, pattern: Steps) -> bool:
    return len(path) == len(pattern) and all(
        expected in (step, ANY) for step, expected in zip(path, pattern, strict=True)
    )


def _below(
    steps: Steps, entry: Schema, root: Schema, visited: tuple[str, ...]
) -> Iterator[tuple[Steps, Schema, bool]]:
    for form, names in _forms(entry, root, visited):
        for key, below in form.get("properties", {}).items():
            yield (*steps, key), below, key in form.get("required", ())
            yield from _below((*steps, key), below, root, names)
        any_key = [*form.get("patternProperties", {}).values(), form.get("additionalProperties")]
        for below in any_key:
            if isinstance(below, Mapping):
                yield (*steps, ANY), below, False
                yield from _below((*steps, ANY), below, root, names)
        if isinstance(form.get("items"), Mapping):
            yield from _below(steps, form["items"], root, names)


def _forms(
    entry: Schema, root: Schema, visited: tuple[str, ...] = ()
) -> Iterator[tuple[Schema, tuple[str, ...]]]:
    """Yield the forms of a value except null and expressions; references once."""
    if "$ref" in entry:
        name = entry["$ref"].rpartition("/")[2]
        if name not in visited:
            yield from _forms(root["$defs"][name], root, (*visited, name))
    elif not entry.keys().isdisjoint(_FORMS) and "properties" not in entry:
        for form in entry.get("anyOf") or entry.get("oneOf") or (entry["then"], entry["else"]):
            yield from _forms(form, root, visited)
    elif entry.get("type") != "null" and r"\$\{\{" not in entry.get("pattern", ""):
        yield entry, visited


def _field(steps: Steps, entry: Schema, required: bool, root: Schema) -> ManifestField:
    forms = [form for form, _ in _forms(entry, root)]
    descriptions = [part.get("description", "") for part in (entry, *forms)]
    keys = {
        below[len(steps)]: None
        for below, _, _ in _below(steps, entry, root, ())
        if len(below) == len(steps) + 1
    }
    default = entry.get("default")
    return ManifestField(
        steps,
        " or ".join(dict.fromkeys(_type(form, root) for form in forms)),
        next(filter(None, descriptions), ""),
        required,
        None if isinstance(default, Mapping) else default,
        tuple(keys),
    )


def _type(form: Schema, root: Schema) -> str:
    if "const" in form:
        return str(form["const"])
    if "enum" in form:
        return " or ".join(map(str, form["enum"]))
    kind = TYPES.get(form.get("type", ""), "anything")
    if form.get("type") == "array" and form.get("items"):
        items = dict.fromkeys(_type(item, root) for item, _ in _forms(form["items"], root))
        return f"a list, each {' or '.join(items)}"
    bounds = {"minimum": "at least", "maximum": "at most"}
    return ", ".join(
        [kind, *(f"{word} {form[key]}" for key, word in bounds.items() if key in form)]
    )

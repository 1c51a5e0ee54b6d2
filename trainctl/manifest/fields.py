"""The fields a manifest may have, by path, as its JSON Schema describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.manifest.suggestions import nearest

ANY = "*"
"""Stands in a path for a name that the manifest's author chooses."""

TYPES = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
"""What JSON Schema calls a type, in words."""

_FORMS = ("anyOf", "oneOf", "if")
"""Keywords of a value that may have several forms."""

Schema = Mapping[str, Any]
Steps = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestField:
    """One field. ``default`` None: there is none, or nothing; ``keys`` are the fields directly below it.

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
        """The steps as one text, for example ``jobs.*.runtime``."""
        return ".".join(self.steps)


def fields(schema: Schema) -> dict[Steps, ManifestField]:
    """Every field below the root, those above before those below."""
    found: dict[Steps, ManifestField] = {}
    for steps, entry, required in _below((), schema, schema, ()):
        found.setdefault(steps, _field(steps, entry, required, schema))
    return found


def find(query: str, known: Mapping[Steps, ManifestField]) -> list[ManifestField]:
    """The fields a path may mean: the one at that very path, else all whose path ends so. Names match ``*``."""
    wanted = tuple(step.split("[")[0] for step in query.split(".") if step)
    whole = [field for steps, field in known.items() if _matches(wanted, steps)]
    ends = [
        field
        for steps, field in known.items()
        if wanted[-1:] == steps[-1:] and _matches(wanted, steps[-len(wanted) :])
    ]
    return whole or ends


def nearest_path(query: str, known: Mapping[Steps, ManifestField]) -> str | None:
    """The path that was probably meant: the right steps with the nearest name at the end, or the nearest last step anywhere."""
    *above, last = query.split(".")
    for parent in find(".".join(above), known) if above else ():
        meant = nearest(last, parent.keys)
        if meant is not None:
            return f"{parent.path}.{meant}"
    meant = nearest(last, {steps[-1] for steps in known if steps[-1] != ANY})
    return next((field.path for steps, field in known.items() if steps[-1] == meant), None)


def _matches(wanted: Steps, steps: Steps) -> bool:
    return len(wanted) == len(steps) and all(
        ours in (theirs, ANY) for theirs, ours in zip(wanted, steps, strict=True)
    )


def _below(
    steps: Steps, entry: Schema, root: Schema, seen: tuple[str, ...]
) -> Iterator[tuple[Steps, Schema, bool]]:
    for form, names in _forms(entry, root, seen):
        for key, below in form.get("properties", {}).items():
            yield (*steps, key), below, key in form.get("required", ())
            yield from _below((*steps, key), below, root, names)
        for below in _any_key(form):
            yield (*steps, ANY), below, False
            yield from _below((*steps, ANY), below, root, names)
        if isinstance(form.get("items"), Mapping):
            yield from _below(steps, form["items"], root, names)


def _any_key(form: Schema) -> Iterator[Schema]:
    yield from form.get("patternProperties", {}).values()
    if isinstance(form.get("additionalProperties"), Mapping):
        yield form["additionalProperties"]


def _forms(
    entry: Schema, root: Schema, seen: tuple[str, ...] = ()
) -> Iterator[tuple[Schema, tuple[str, ...]]]:
    """The forms a value may have: references followed, each once on a way down; neither null nor a whole expression."""
    if "$ref" in entry:
        name = entry["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _forms(root["$defs"][name], root, (*seen, name))
    elif not entry.keys().isdisjoint(_FORMS) and "properties" not in entry:
        for one in entry.get("anyOf") or entry.get("oneOf") or (entry["then"], entry["else"]):
            yield from _forms(one, root, seen)
    elif entry.get("type") != "null" and r"\$\{\{" not in entry.get("pattern", ""):
        yield entry, seen


def _field(steps: Steps, entry: Schema, required: bool, root: Schema) -> ManifestField:
    forms = [form for form, _ in _forms(entry, root)]
    said = [entry.get("description", ""), *(form.get("description", "") for form in forms)]
    keys = {
        below[len(steps)]: None
        for below, _, _ in _below(steps, entry, root, ())
        if len(below) == len(steps) + 1
    }
    default = entry.get("default")
    return ManifestField(
        steps,
        " or ".join(dict.fromkeys(_type(form, root) for form in forms)),
        next((text for text in said if text), ""),
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
        items = dict.fromkeys(_type(one, root) for one, _ in _forms(form["items"], root))
        return f"a list, each {' or '.join(items)}"
    least = form.get("minimum")
    return f"{kind}, at least {least}" if least is not None else kind

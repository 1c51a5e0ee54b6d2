"""Validation of a manifest's tree; reports all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainctl.manifest.messages import UNKNOWN_KEY, address_of, describe, path_text
from trainctl.manifest.tree import (
    ManifestNode,
    Path,
    child,
    list_node,
    mapping_node,
    position_of,
    scalar_node,
    to_plain,
    with_edits,
)
from trainctl.model.credentials import looks_like_credential
from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.model.specs.checks import OBJECT, OTHERS, TEXT
from trainctl.model.specs.document import Manifest

_KEY = "[key]"
_ATTEMPTS = 5
_PLACEHOLDER_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """A manifest without its invalid values, its tree, and the problems."""

    manifest: Manifest
    root: ManifestNode
    problems: list[Diagnostic]


def check(root: ManifestNode, reported: Collection[Position | None] = ()) -> CheckedManifest:
    """Validate a tree; skip problems at positions that are already ``reported``."""
    problems = _both_projects(root)
    for attempt in range(_ATTEMPTS):
        try:
            return CheckedManifest(manifest_type().validate_python(to_plain(root)), root, problems)
        except ValidationError as failure:
            by_path = _by_path(root, failure)
        if attempt == 0:
            new = (_diagnostic(root, path, errors) for path, errors in by_path.items())
            problems += [problem for problem in new if problem.where not in reported]
        root = with_edits(root, dict(_repair_tree(root, path, attempt) for path in by_path if path))
    return CheckedManifest(Manifest(), root, problems)


@cache
def manifest_type() -> TypeAdapter[Manifest]:
    """Return pydantic's validator of a manifest, which takes a tenth of a second to make."""
    return TypeAdapter(Manifest)


def _repair_tree(root: ManifestNode, path: Path, attempt: int) -> tuple[Path, ManifestNode | None]:
    """Choose an edit for an invalid value: removal, placeholder, removal of more."""
    if attempt == 0:
        return path, None
    placeholder = _PLACEHOLDERS.get(str(path[-1])) if attempt <= _PLACEHOLDER_ATTEMPTS else None
    if placeholder is not None:
        return path, placeholder(position_of(root, path))
    return path[: 1 if attempt == _ATTEMPTS - 2 else 2], None


def _commands(where: Position) -> ManifestNode:
    return list_node([scalar_node("true", where)], where)


_PLACEHOLDERS: Mapping[str, Callable[[Position], ManifestNode]] = {
    "runtime": lambda where: mapping_node({"start_commands": _commands(where)}, {}, where),
    "start_commands": _commands,
    "source": lambda where: scalar_node("file:./missing", where),
    "base_image": lambda where: scalar_node("missing", where),
}
"""Placeholders for required values, so that the rest of their section is checked."""


def credential_problems(root: ManifestNode) -> list[Diagnostic]:
    """Report literals that look like a credential."""
    return [_credential(root, path) for path in find_credentials(root)]


def find_credentials(root: ManifestNode, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of keys and values that contain a credential."""
    if isinstance(root.value, str) and looks_like_credential(root.value):
        yield path
    for key, entry in root.entries.items():
        if looks_like_credential(key):
            yield (*path, key)
        if not isinstance(entry.value, str):
            yield from find_credentials(entry, (*path, key))
        elif looks_like_credential(entry.value):
            yield (*path, key)
    for index, item in enumerate(root.items):
        yield from find_credentials(item, (*path, index))


def key_position(root: ManifestNode, path: Path) -> Position:
    """Return the position of the key at a path, for items of lists of the value."""
    node = root
    for step in path[:-1]:
        below = child(node, step)
        if below is None:
            return node.where
        node = below
    last = path[-1] if path else None
    where = node.keys.get(last) if isinstance(last, str) else None
    return where or position_of(root, path)


def _credential(root: ManifestNode, path: Path) -> Diagnostic:
    names = [str(step) for step in path]
    at_source = "source" in names or path[:1] == ("weights",) or "weights" in names[2:3]
    advice = (
        "Remove it, declare it under 'secrets' and name the secret in the source's 'auth'."
        if at_source
        else "Declare it under 'secrets' and refer to it: environment_variables: {NAME: {secret: …}}."
    )
    node_place = position_of(root, path)
    name = path_text(path[:-1]) if names and looks_like_credential(names[-1]) else path_text(path)
    return error(
        f"{name}: this looks like a credential",
        f"Credentials are not allowed in a manifest. {advice}",
        address=address_of(path),
        where=node_place,
        code="credential",
    )


def _both_projects(root: ManifestNode) -> list[Diagnostic]:
    if not {"project", "projects"} <= root.entries.keys():
        return []
    return [
        error(
            "both 'project' and 'projects' are set",
            "Keep one of them; use 'projects' for several projects.",
            where=root.key_position("projects"),
            code="conflicting-projects",
        )
    ]


def _by_path(root: ManifestNode, failure: ValidationError) -> dict[Path, list[Mapping[str, Any]]]:
    by_path: dict[Path, list[Mapping[str, Any]]] = {}
    for problem in failure.errors(include_url=False, include_input=False):
        by_path.setdefault(_path(root, problem), []).append(problem)
    return by_path


def _path(root: ManifestNode, problem: Mapping[str, Any]) -> Path:
    path: list[str | int] = []
    node = root
    for step in problem["loc"]:
        if step in (TEXT, OBJECT, OTHERS, _KEY):
            continue
        below = child(node, step)
        if below is None:
            if problem["type"] == "missing":
                path.append(step)
            break
        path.append(step)
        node = below
    return tuple(path)


def _diagnostic(root: ManifestNode, path: Path, errors: list[Mapping[str, Any]]) -> Diagnostic:
    about_key = errors[0]["type"] == UNKNOWN_KEY or _KEY in errors[0]["loc"]
    node: ManifestNode | None = root
    for step in path:
        node = child(node, step) if node is not None else None
    text = describe(errors, path, None if about_key else node)
    where = key_position(root, path) if about_key else position_of(root, path)
    return error(text.summary, text.detail, code=text.code, address=address_of(path), where=where)

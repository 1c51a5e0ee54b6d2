"""Validation of a manifest's tree: all problems at once, with messages for the errors of pydantic."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_dataclass import fields as dataclass_fields
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.manifest.sections import UndecidedValue, read_section
from trainctl.manifest.tree import (
    ManifestNode,
    Path,
    child,
    list_node,
    mapping_node,
    node_at,
    position_of,
    scalar_node,
    scalar_text,
    to_plain,
    with_edits,
)
from trainctl.model.credentials import any_credential, is_secret_key, looks_like_credential
from trainctl.model.diagnostics import Diagnostic, Position, did_you_mean, error
from trainctl.model.specs.checks import NAME_ADVICE, OBJECT, OTHERS, TEXT, CheckedSection, key_of
from trainctl.model.specs.document import ORIGIN_KEYS, Manifest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KINDS = {
    "projects": "project",
    "clusters": "cluster",
    "weights": "weights",
    "caches": "cache",
    "jobs": "job",
}
_EXPECTED = {
    "string_type": "text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}
UNKNOWN_KEY = "unexpected_keyword_argument"
_SHOWN = 60
_SECTION_NAME = 2
"""Length of the path of a name of a project or job."""


_IAM_KEYS = "Use aws_iam_docker_auth: {access_key_secret_ref: {secret: NAME}, secret_access_key_secret_ref: {secret: NAME}}."
_SDK_KEYS = {
    "session_provider": "Remove it: enter runs with trainctl ssh.",
    "auth_provider": "Remove it: enter runs with trainctl ssh.",
    "enable_cache": "Use cache_config: {enabled: true, enable_legacy_hf_mount: true}.",
    "enable_legacy_hf_cache": "Use enable_legacy_hf_mount.",
    "enable_baseten_workdir": "Remove it: commands always start in $BT_WORKING_DIR.",
    "team_name": "Use labels: {team: NAME} in the project.",
    "job": "Declare it under 'jobs': jobs: {NAME: {…}}.",
    "secret_name": "Use registry_secret_docker_auth: {secret_ref: {secret: NAME}}.",
    "access_key_secret_name": _IAM_KEYS,
    "secret_access_key_secret_name": _IAM_KEYS,
    "aws_access_key_id_secret_name": _IAM_KEYS,
    "aws_secret_access_key_secret_name": _IAM_KEYS,
    "gcp_service_account_json_secret_name": "Use gcp_service_account_json_docker_auth: {service_account_json_secret_ref: {secret: NAME}}.",
}
"""Keys of truss_train and truss that mean something else here, and what to write."""


class DiagnosticText(NamedTuple):
    """Texts and code of a diagnostic."""

    summary: str
    detail: str
    code: str


def address_of(path: Path) -> str | None:
    """Return the address of the resource at a path, None outside of resources."""
    if len(path) > 1 and path[0] in KINDS:
        return f"{KINDS[str(path[0])]}.{path[1]}"
    return None


def path_text(path: Path) -> str:
    """Format a path, relative to its resource if it is in one."""
    steps = path[2:] if len(path) > 2 and path[0] in KINDS else path
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")


def describe(
    errors: Sequence[Mapping[str, Any]], path: Path, node: ManifestNode | None
) -> DiagnosticText:
    """Describe the errors of pydantic at one path; ``node`` is the value there."""
    kind = errors[0]["type"]
    context = errors[0].get("ctx", {})
    key = path[-1] if path else "the manifest"
    if kind == "manifest":
        return DiagnosticText(
            f"{path_text(path)}: {context['summary']}", context["detail"], context["code"]
        )
    if kind == UNKNOWN_KEY:
        below = [_nested_keys(section).get(str(key), ()) for section in _sections_at(path[:-1])]
        places = {place for nested in below for place in nested}
        place = places.pop() if len(places) == 1 else None
        parents = (path[:length] for length in range(len(path) - 2, -1, -1))
        nearest_first = (parent for parent in parents if key in known_keys(parent))
        above = None if place else next(nearest_first, None)
        if key in _SDK_KEYS or (key == "name" and known_keys(path[:-1]) == ["secret"]):
            hint = _SDK_KEYS.get(str(key), "Use {secret: NAME}, and declare it under 'secrets'.")
        elif place:
            hint = f"Move it to {path_text((*path[:-1], place))!r}."
        elif above is not None:
            sibling = path[len(above)]
            hint = (
                f"Move it one level up, next to {str(sibling)!r}."
                if len(above) == len(path) - 2
                else f"Move it next to {str(sibling)!r}."
            )
        else:
            origin = ORIGIN_KEYS.get(str(key)) if path[:1] == ("secrets",) else None
            hint = did_you_mean(str(key), known_keys(path[:-1]))
            hint = f"Write {{from: {key}, {origin[0]}: …}}." if origin else hint
        return DiagnosticText(f"unknown key {str(key)!r}", hint, "unknown-key")
    if kind == "missing":
        is_origin = path[:1] == ("secrets",) and key == "from"
        hint = f"Add it: one of {', '.join(ORIGIN_KEYS)}." if is_origin else "Add it."
        return DiagnosticText(f"{path_text(path)} is missing", hint, "missing-key")
    if kind in _EXPECTED:
        types = [_EXPECTED[error["type"]] for error in errors if error["type"] in _EXPECTED]
        if errors[0]["loc"] and errors[0]["loc"][-1] == OBJECT:
            types = ["text", *types]
        expected = " or ".join(dict.fromkeys(types))
        detail = _describe_value(path, node, expected)
        return DiagnosticText(f"{path_text(path)}: expected {expected}", detail, "wrong-type")
    return _of_value(kind, context, path, node)


def known_keys(path: Path) -> list[str]:
    """Return the valid keys of the section at a path."""
    return [name for section in _sections_at(path) for name in _fields(section)]


@cache
def _nested_keys(section: Any) -> dict[str, set[str]]:
    """Return the dotted paths of the subsections that have a key, for each key."""
    paths: dict[str, set[str]] = {}
    for name, annotation in _fields(section).items():
        for inner in _direct_sections(annotation):
            for key in _fields(inner):
                paths.setdefault(key, set()).add(name)
            for key, places in _nested_keys(inner).items():
                paths.setdefault(key, set()).update(f"{name}.{place}" for place in places)
    return paths


def _direct_sections(annotation: Any) -> set[Any]:
    """Return the possible sections of a value, without items of lists and mappings."""
    if get_origin(annotation) in (list, tuple, dict, Mapping):
        return set()
    if isinstance(annotation, type):
        return {annotation} if issubclass(annotation, CheckedSection) else set()
    return {section for part in get_args(annotation) for section in _direct_sections(part)}


@cache
def _fields(section: Any) -> dict[str, Any]:
    """Return the types of a section's keys."""
    hints = get_type_hints(section)
    keys = {field.name: key_of(field) for field in dataclass_fields(section)}
    return {key: hints[name] for name, key in keys.items() if key != OTHERS}


def _sections_at(path: Path) -> set[Any]:
    sections: set[Any] = {Manifest}
    for step in path:
        below = {
            inner
            for section in sections
            for name, annotation in _fields(section).items()
            if step == name
            for inner in _sections(annotation)
        }
        sections = below or sections
    return sections


def _sections(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, CheckedSection):
        return {annotation}
    return {section for part in get_args(annotation) for section in _sections(part)}


def _describe_value(path: Path, node: ManifestNode | None, expected: str) -> str:
    if node is None:
        return ""
    if isinstance(node.value, dict) and path[-1] == "accelerator":
        return "Use TYPE:COUNT, for example H100:8."
    if isinstance(node.value, dict | list):
        return f"Found a {'mapping' if isinstance(node.value, dict) else 'list'}."
    if node.value is None:
        return "The value is empty. Set a value, or remove the key."
    if isinstance(node.value, str):
        text = f"Found the text {displayable_value(path, node)}."
        whole = not _hidden(path, node.value) and len(node.value) <= _SHOWN
        return (
            f"{text} Write [{displayable_value(path, node)}]."
            if expected == "a list" and whole
            else text
        )
    hidden = _hidden(path, node.value)
    if "text" not in expected:
        return "" if hidden else f"Found {displayable_value(path, node)}."
    if hidden:
        return "If you mean text, put it in quotes."
    return f'Found {displayable_value(path, node)}. If you mean text, put it in quotes: "{scalar_text(node.value)}".'


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
}
"""Words and context keys of pydantic's kinds of errors."""


def _of_value(
    kind: str, context: Mapping[str, Any], path: Path, node: ManifestNode | None
) -> DiagnosticText:
    detail = f"Found {displayable_value(path, node)}." if node is not None else ""
    if kind == "literal_error":
        return DiagnosticText(
            f"{path_text(path)}: expected {context['expected']}", detail, "unknown-value"
        )
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return DiagnosticText(
            f"{path_text(path)} must be {word} {context[key]:g}", detail, "out-of-range"
        )
    if kind == "too_short":
        return DiagnosticText(
            f"{path_text(path)} is empty", "Add at least one entry.", "empty-value"
        )
    if kind == "string_pattern_mismatch":
        name = node.value if node is not None and isinstance(node.value, str) else str(path[-1])
        return DiagnosticText(
            f"invalid name {name!r}",
            NAME_ADVICE
            if path[:1] in (("jobs",), ("projects",)) and len(path) == _SECTION_NAME
            else "Use at most 128 letters, digits, '.', '_' and '-', starting with a letter or digit.",
            "invalid-name",
        )
    return DiagnosticText(f"{path_text(path)} is invalid", detail, "invalid-value")


def displayable_value(path: Path, node: ManifestNode) -> str:
    """Format a value for messages, hiding possible secrets."""
    if isinstance(node.value, dict | list):
        return "a mapping" if isinstance(node.value, dict) else "a list"
    text = scalar_text(node.value)
    if _hidden(path, node.value):
        return "a value that is hidden here"
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}…"
    return json.dumps(text, ensure_ascii=False) if isinstance(node.value, str) else text


def _hidden(path: Path, value: object) -> bool:
    names = [step for step in path if isinstance(step, str)]
    if "environment_variables" in names or any(is_secret_key(name) for name in names[1:]):
        return True
    return isinstance(value, str) and looks_like_credential(value)


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
    problems: list[Diagnostic] = []
    if {"project", "projects"} <= root.entries.keys():
        where, advice = (
            root.key_position("projects"),
            "Keep one of them; use 'projects' for several projects.",
        )
        summary = "both 'project' and 'projects' are set"
        problems.append(error(summary, advice, where=where, code="conflicting-projects"))
    with suppress(UndecidedValue):
        return CheckedManifest(read_section(Manifest, to_plain(root)), root, problems)
    from pydantic import ValidationError

    for attempt in range(_ATTEMPTS):
        try:
            return CheckedManifest(manifest_type().validate_python(to_plain(root)), root, problems)
        except ValidationError as failure:
            by_path: dict[Path, list[Mapping[str, Any]]] = {}
            for failed in failure.errors(include_url=False, include_input=False):
                by_path.setdefault(_path(root, failed), []).append(failed)
        if attempt == 0:
            for path, errors in by_path.items():
                about_key = errors[0]["type"] == UNKNOWN_KEY or _KEY in errors[0]["loc"]
                where = key_position(root, path) if about_key else position_of(root, path)
                if where not in reported:
                    text = describe(errors, path, None if about_key else node_at(root, path))
                    address = address_of(path)
                    problems.append(
                        error(
                            text.summary, text.detail, code=text.code, address=address, where=where
                        )
                    )
        root = with_edits(root, dict(_repair_tree(root, path, attempt) for path in by_path if path))
    return CheckedManifest(Manifest(), root, problems)


@cache
def manifest_type() -> TypeAdapter[Manifest]:
    """Return pydantic's validator of a manifest, which takes a tenth of a second to make."""
    from pydantic import TypeAdapter

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
    if not any_credential([*_texts(root)]):
        return []
    return [_credential(root, path) for path in find_credentials(root)]


def _texts(root: ManifestNode) -> Iterator[str]:
    """Yield the keys and texts of a tree."""
    if isinstance(root.value, str):
        yield root.value
    yield from root.entries
    for below in (*root.entries.values(), *root.items):
        if isinstance(below.value, str):
            yield below.value
        elif below.height > 1:
            yield from _texts(below)


def find_credentials(root: ManifestNode, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of keys and values that contain a credential."""
    if isinstance(root.value, str) and looks_like_credential(root.value):
        yield path
    for key, entry in root.entries.items():
        if looks_like_credential(key):
            yield (*path, key)
        yield from find_credentials(entry, (*path, key))
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

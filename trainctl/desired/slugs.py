"""Names as people write them: keys of ``projects`` and ``jobs`` become names in addresses."""

from __future__ import annotations

from trainctl.desired.expression import OPEN
from trainctl.manifest.tree import ManifestNode, Path, mapping_node, scalar_node, with_edits
from trainctl.manifest.types.base import LONGEST_NAME
from trainctl.model.address import NAME, slug
from trainctl.model.diagnostics import Diagnostic, error

_KINDS = {"projects": "project", "jobs": "job"}


def with_slugs(root: ManifestNode, problems: list[Diagnostic]) -> ManifestNode:
    """Return the tree with slugs as keys, and ``name`` in their sections; report equal slugs."""
    edits: dict[Path, ManifestNode | None] = {
        (section,): _section(root.entries[section], kind, problems)
        for section, kind in _KINDS.items()
        if section in root.entries and not all(map(NAME.fullmatch, root.entries[section].entries))
    }
    return with_edits(root, edits) if edits else root


def _section(node: ManifestNode, kind: str, problems: list[Diagnostic]) -> ManifestNode:
    entries: dict[str, ManifestNode] = {}
    written: dict[str, str] = {}
    for text, entry in node.entries.items():
        valid = text.strip() and text.isprintable() and len(text) <= LONGEST_NAME
        valid = valid and OPEN not in text  # the expander reports it
        name = slug(text) if valid else text
        if name in written:
            problems.append(
                error(
                    f"the names {written[name]!r} and {text!r} have the same address {kind}.{name}",
                    "Rename one of them.",
                    address=f"{kind}.{name}",
                    where=node.key_position(text),
                    code="duplicate-address",
                )
            )
            continue
        written[name] = text
        entries[name] = _named(entry, text) if name != text else entry
    keys = {name: node.key_position(text) for name, text in written.items()}
    return mapping_node(entries, keys, node.where)


def _named(section: ManifestNode, text: str) -> ManifestNode:
    """Return the section with this name, unless it has one or isn't a mapping."""
    if not isinstance(section.value, dict) or "name" in section.entries:
        return section
    entries = {"name": scalar_node(text, section.where), **section.entries}
    return mapping_node(entries, section.keys, section.where)

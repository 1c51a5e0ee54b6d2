"""Renamed resources: their records and the references to them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import StateError, UsageError
from trainctl.ledger.state import ORIGIN, RecordedResource, State
from trainctl.model.address import Address, Kind

RENAMEABLE = (Kind.PROJECT, Kind.WEIGHTS, Kind.CACHE, Kind.JOB)
_REFERENCES = ("weights", "weight_pins", "depends_on", "for_each_checkpoint")
"""Attributes of jobs that contain addresses, besides the checkpoints to load."""

Names = Mapping[Address, Address]


def renames(
    state: State, pairs: Iterable[tuple[Address, Address]], declared: Container[Address] = ()
) -> dict[Address, Address]:
    """Return the new address of each recorded resource to rename.

    A matrix stands for all of its jobs. The weights written in a job, and the default caches of a project, are renamed
    with it, unless the manifest still has them (``declared``). Pairs without a recorded resource are omitted; UsageError if a pair is impossible.
    """
    names: dict[Address, Address] = {}
    for old, new in pairs:
        if old.kind is not new.kind or old.kind not in RENAMEABLE:
            raise UsageError(
                f"{old} can't be renamed to {new}",
                f"Only resources of one kind: {', '.join(RENAMEABLE)}. The name of a cluster is part of its nodes' names.",
            )
        names |= {
            address: new._replace(key=address.key)
            for address in state.resources
            if address.group == old and address.key is not None
        }
        if old in state.resources:
            names[old] = new
        if old.kind is Kind.JOB and old.key is None:  # generated names that contain the old one
            inline = re.compile(rf"{re.escape(old.name)}(-\d+)")
            implied = {
                address: address._replace(name=new.name + match[1])
                for address in state.resources
                if address.kind is Kind.WEIGHTS and (match := inline.fullmatch(address.name))
            }
        else:
            implied = {
                address: address._replace(name=f"{new.name}-{recorded.cache_spec.cluster}")
                for address, recorded in state.resources.items()
                if address.kind is Kind.CACHE
                and old == Address(Kind.PROJECT, recorded.cache_spec.project or "")
                and address.name == f"{old.name}-{recorded.cache_spec.cluster}"
            }
        names = {old: new for old, new in implied.items() if old not in declared} | names
    for old, new in names.items():
        if new in state.resources and new not in names:
            raise StateError(
                f"{old} can't be renamed to {new}, which is in the state, too",
                f"Remove one of them from the state: trainctl state rm {new.shell_quoted}.",
                address=str(new),
                code="invalid-move",
            )
    return names


def renamed_record(recorded: RecordedResource, names: Names) -> RecordedResource:
    """Return a record with its new address, and new addresses in its references."""
    address = names.get(recorded.address, recorded.address)
    outputs = recorded.outputs
    if address != recorded.address:
        outputs = {ORIGIN: str(recorded.address), **outputs}
    return replace(
        recorded,
        address=address,
        attributes=_renamed_attributes(recorded, address, names),
        outputs=outputs,
        depends_on=tuple(names.get(needed, needed) for needed in recorded.depends_on),
    )


def _renamed_attributes(
    recorded: RecordedResource, address: Address, names: Names
) -> Mapping[str, Any]:
    attributes = dict(recorded.attributes)
    if address.kind is Kind.PROJECT:
        return {**attributes, "name": address.name}
    texts = {str(old): str(new) for old, new in names.items()}
    texts |= {str(old.group): str(new.group) for old, new in names.items()}
    projects = {old.name: new.name for old, new in names.items() if old.kind is Kind.PROJECT}
    if attributes.get("project") in projects:
        attributes["project"] = projects[attributes["project"]]
    for name in _REFERENCES:
        if attributes.get(name):
            attributes[name] = _renamed_texts(attributes[name], texts, projects)
    loads = (attributes.get("runtime") or {}).get("load_checkpoint_config")
    if loads:
        renamed = {"load_checkpoint_config": _renamed_texts(loads, texts, projects)}
        attributes["runtime"] = {**attributes["runtime"], **renamed}
    return attributes


def _renamed_texts(value: Any, texts: Mapping[str, str], projects: Mapping[str, str]) -> Any:
    """Replace addresses, and names of projects in ``project`` fields."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, Mapping):
        return {
            texts.get(name, name): projects.get(item, item)
            if name == "project"
            else _renamed_texts(item, texts, projects)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renamed_texts(item, texts, projects) for item in value]
    return value

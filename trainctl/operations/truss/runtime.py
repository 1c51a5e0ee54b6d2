"""Conversion of ``Runtime``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainctl.model.credentials import HIDDEN, looks_like_credential
from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.model.specs.runtime import RESERVED_PREFIXES, VARIABLE
from trainctl.operations.truss.section import ConfigSection

_EXPRESSION = "${{"
_COMMANDS = ("runtime", "start_commands")
_VARIABLES = ("runtime", "environment_variables")


def runtime_section(
    result: ImportedManifest, runtime: ConfigSection, project: str
) -> dict[str, Any]:
    """Convert the section; ``project`` is the project's name as written."""
    section: dict[str, Any] = {"start_commands": _commands(result, runtime)}
    variables = _environment(result, runtime.section("environment_variables"))
    if variables:
        section["environment_variables"] = variables
        result.carried["runtime.environment_variables"] = ", ".join(variables)
    legacy = {"enabled": True, "enable_legacy_hf_mount": True}
    enabled, cache = runtime.take("enable_cache"), runtime.take("cache_config")
    for key, config in (
        ("cache_config", cache or (legacy if enabled else None)),
        ("checkpointing_config", runtime.take("checkpointing_config")),
    ):
        section |= _switched(result, key, config)
    loading = _load_config(result, runtime.section("load_checkpoint_config"), project)
    if loading:
        section["load_checkpoint_config"] = loading
    runtime.finish(result)
    return section


def _commands(result: ImportedManifest, runtime: ConfigSection) -> list[str]:
    commands = [command for command in runtime.take("start_commands", []) if command.strip()]
    for number, command in enumerate(commands):
        problem = None
        if _EXPRESSION in command:
            problem = f"'{_EXPRESSION}' starts an expression of trainctl."
        elif looks_like_credential(command):
            problem = "It contains a credential: declare a secret, and use its variable."
        if problem:
            name = f"runtime.start_commands[{number}]"
            result.note(ImportOutcome.DIFFERENT, name, problem, *_COMMANDS)
    if not commands:
        text = "There is no command; the service would start the image's own."
        result.note(ImportOutcome.DIFFERENT, "runtime.start_commands", text, *_COMMANDS)
        return ["true"]
    first = commands[0].strip().splitlines()[0]
    shown = HIDDEN if looks_like_credential(first) else first
    more = f" and {len(commands) - 1} more" if len(commands) > 1 else ""
    result.carried["runtime.start_commands"] = f"{shown}{more}"
    return commands


def _environment(result: ImportedManifest, variables: ConfigSection) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for name, value in variables.rest.items():
        field = f"{variables.name}.{name}"
        if name.startswith(RESERVED_PREFIXES) or not re.fullmatch(VARIABLE, name):
            text = "The name is reserved or invalid: use another one."
            result.note(ImportOutcome.DIFFERENT, field, text, "runtime")
        elif isinstance(value, Mapping):
            section[name] = {"secret": result.secret(value["name"])}
        elif looks_like_credential(value):
            section[name] = {"secret": result.secret(name)}
            text = f"The value is a credential: set {name} in the environment of trainctl."
            result.note(ImportOutcome.CHANGED, field, text, *_VARIABLES, name)
        elif _EXPRESSION in value:
            text = f"'{_EXPRESSION}' starts an expression of trainctl."
            result.note(ImportOutcome.DIFFERENT, field, text, "runtime")
        else:
            section[name] = value
    return section


def _switched(result: ImportedManifest, key: str, config: Any) -> dict[str, Any]:
    """Return a section whose fields are those of the SDK, nothing if it is disabled."""
    values = {name: value for name, value in (config or {}).items() if value is not None}
    if not values.get("enabled"):
        return {}
    defaults = {"enable_legacy_hf_mount": False, "require_cache_affinity": True}
    kept = {name: value for name, value in values.items() if defaults.get(name) != value}
    others = [f"{name} {value}" for name, value in kept.items() if name != "enabled"]
    result.carried[f"runtime.{key}"] = ", ".join(["enabled", *others])
    return {key: kept}


_DOWNLOAD = (
    "Download it (truss train get_checkpoint_urls), and mount its directory as weights:"
    " {source: file:./DIRECTORY, mount_location: …}."
)


def _load_config(
    result: ImportedManifest, config: ConfigSection, project: str
) -> dict[str, Any] | None:
    """Convert the section; only the latest checkpoint of its own project can be found here."""
    if not config.take("enabled", False):
        return None
    folder = config.take("download_folder")
    references = [
        ConfigSection.of(f"{config.name}.checkpoints[{number}]", value)
        for number, value in enumerate(config.take("checkpoints", []))
    ]
    config.finish(result)
    found = False
    for reference in references:
        problem = _why_missing(reference, project)
        found = found or problem is None
        if problem is not None:
            text = f"{problem} is stored by the service. {_DOWNLOAD}"
            result.note(ImportOutcome.DIFFERENT, reference.name, text, "runtime")
    if not found:
        return None
    text = "Finds checkpoints of runs of trainctl, none for the first run."
    result.note(ImportOutcome.CHANGED, config.name, text, "runtime", "load_checkpoint_config")
    section: dict[str, Any] = {"enabled": True, "checkpoints": [{"typ": "latest"}]}
    return {**section, "download_folder": folder} if folder else section


def _why_missing(reference: ConfigSection, project: str) -> str | None:
    """Return the checkpoint's description if the service has it, None for the project's latest."""
    name, other = reference.take("checkpoint_name"), reference.take("project_name")
    what = repr(name) if name else "The latest checkpoint"
    run, job = reference.take("run_id"), reference.take("job_id")
    if run:
        return f"{what} of the Loops run {run!r}"
    if job:
        return f"{what} of job {job!r}"
    return f"{what} of project {other!r}" if other not in (None, project) else None

"""Settings of a cluster, and the output of its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass, field, fields
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import parse_duration
from trainctl.errors import NodeError
from trainctl.plugin_api.provider import (
    IDLE_TIMEOUT_SECONDS,
    ClusterSettings,
    SettingsProblem,
    integer_schema,
    text_schema,
)
from trainctl_ssh.hosts import HOST
from trainctl_ssh.user_data import BOOT_TIMEOUT, IDLE_TIMEOUT, shutdown_command

OWN_INPUTS = ("name", "key", "public_key", "user_data")
"""Inputs of a module that trainctl sets."""
_COMMIT = compile_lazily(r"[?&]ref=[0-9a-f]{40}(&|$)")


@dataclass(frozen=True, slots=True)
class TerraformSettings:
    """Settings of one cluster; durations in seconds. ``secrets``: names of secrets by variable."""

    module: str
    version: str = ""
    program: str = ""
    nodes: int = 1
    variables: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    max_lifetime: float | None = None
    boot_timeout: float = 900.0
    idle_timeout: float = IDLE_TIMEOUT_SECONDS

    @property
    def is_local(self) -> bool:
        """Whether the module is a directory of this machine."""
        return self.module.startswith(("./", "../", "/"))


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    names = {
        "pattern": r"^[A-Za-z_][A-Za-z0-9_-]*$(?!\n)",
        "not": {"enum": [*OWN_INPUTS, "max_lifetime"]},
    }
    secret = {
        "type": "object",
        "additionalProperties": False,
        "required": ["secret"],
        "properties": {"secret": {"type": "string", "description": "Name of a declared secret."}},
    }
    properties: dict[str, Any] = {
        "module": text_schema(r"^[^\x00-\x20\x7f-][^\x00-\x20\x7f]*$(?!\n)", "Module of one machine: a directory (./infra/h100), git::https://…?ref=COMMIT, or a source of a registry."),
        "version": text_schema(r"^[0-9][0-9A-Za-z.+-]*$(?!\n)", "Version of a module from a registry."),
        "program": {"enum": ["tofu", "terraform"], "description": "Program to run; default: tofu if it is installed, else terraform."},
        "nodes": integer_schema("Number of machines.", default=1),
        "variables": {"type": "object", "propertyNames": names, "description": "Inputs of the module, by name."},
        "secrets": {"type": "object", "propertyNames": names, "additionalProperties": secret, "description": "Inputs of the module whose values are secrets: {NAME: {secret: SECRET}}. The module declares them as ephemeral."},
        "gpus": integer_schema("Number of GPUs that jobs may use; default: all that the machine reports.", minimum=0),
        "max_lifetime": {"anyOf": BOOT_TIMEOUT["anyOf"], "description": "Time after which the cloud ends a machine: an input of the module, in seconds."},
        "boot_timeout": BOOT_TIMEOUT,
        "idle_timeout": IDLE_TIMEOUT,
    }  # fmt: skip
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["module"],
        "properties": properties,
    }


def read_settings(own: Mapping[str, Any]) -> TerraformSettings:
    """Return the settings that the schema accepts."""
    values = {each.name: own[each.name] for each in fields(TerraformSettings) if each.name in own}
    for name in values.keys() & {"boot_timeout", "idle_timeout", "max_lifetime"}:
        values[name] = parse_duration(values[name])
    if "secrets" in values:
        values["secrets"] = {name: each["secret"] for name, each in values["secrets"].items()}
    return TerraformSettings(**values)


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield sources without a version, and inputs that are set twice."""
    settings = read_settings(cluster.settings)
    if not (settings.is_local or settings.version or _COMMIT.search(settings.module)):
        yield SettingsProblem(
            ("module",), f"module {settings.module} is not pinned",
            "Set version for a module of a registry, add ?ref= and the 40 digits of a commit to another source, or write a directory as ./DIRECTORY.",
        )  # fmt: skip
    for name in sorted(settings.variables.keys() & settings.secrets.keys()):
        yield SettingsProblem(
            ("secrets", name), f"{name} is in variables and in secrets", "Remove one of them."
        )


def read_output(state: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """Return the output ``node`` of a state, a machine; None without one, NodeError if it isn't a machine."""
    from jsonschema import Draft202012Validator  # slow to import

    value = ((state.get("outputs") or {}).get("node") or {}).get("value")
    if value is None:
        return None
    if isinstance(value, dict):  # optional members may be null
        value = {name: member for name, member in value.items() if member is not None}
    host: Any = HOST["properties"]
    names = ("address", "user", "port", "jump", "host_key", "price_per_hour")
    ends = {"type": "array", "items": {"enum": ["guest", "provider"]}}
    output = {
        "type": "object",
        "required": ["address", "user"],
        "properties": {**{name: host[name] for name in names}, "ends": ends},
    }
    for error in Draft202012Validator(output).iter_errors(value):
        where = "".join(f".{part}" for part in error.absolute_path)
        raise NodeError(
            f"the module's output node{where} of {node} is invalid: {error.validator}",
            f"It must be an object with address and user, and may have {', '.join(names[2:])} and ends.",
            code="terraform-output",
        )
    return dict(value)


def node_facts(settings: TerraformSettings, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a node that an output, also a planned one, says: its price, and what ends its machine."""
    price, ends = output.get("price_per_hour"), output.get("ends") or ()
    return {
        "price_per_hour": price if isinstance(price, int | float) else None,
        "shutdown": shutdown_command(str(output.get("user"))) if "guest" in ends else (),
        "max_lifetime": settings.max_lifetime if "provider" in ends else None,
        "boot_timeout": settings.boot_timeout,
        "idle_timeout": settings.idle_timeout,
    }

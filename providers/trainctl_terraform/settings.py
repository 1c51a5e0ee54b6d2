"""Settings of a cluster, records of its nodes, and the output of its module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeError
from trainctl.plugin_api.provider import (
    ClusterSettings,
    Node,
    SettingsProblem,
    integer_schema,
)
from trainctl_ssh import keys
from trainctl_ssh.hosts import HOST
from trainctl_ssh.machines import MachineSettings, setting, text_setting
from trainctl_ssh.user_data import LOGIN_USER, user_data

PROVIDER = "terraform"
OWN_INPUTS = ("name", "key", "public_key", "user_data")
"""Inputs of a module that trainctl sets."""
_COMMIT = compile_lazily(r"[?&]ref=[0-9a-f]{40}(&|$)")
_NAMES: JsonObject = {
    "pattern": r"^[A-Za-z_][A-Za-z0-9_-]*$(?!\n)",
    "not": {"enum": [*OWN_INPUTS]},
}
_SECRET: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "required": ["secret"],
    "properties": {"secret": {"type": "string", "description": "Name of a declared secret."}},
}


def _inputs(description: str, **schema: Any) -> Any:
    return setting({}, type="object", propertyNames=_NAMES, description=description, **schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerraformSettings(MachineSettings):
    """Settings of one cluster by their keys in the manifest; durations in seconds."""

    module: str = text_setting(r"^[^\x00-\x20\x7f-][^\x00-\x20\x7f]*$(?!\n)", "Module of one machine: a directory (./infra/h100), git::https://…?ref=COMMIT, or a source of a registry.")  # fmt: skip
    version: str = text_setting(
        r"^[0-9][0-9A-Za-z.+-]*$(?!\n)", "Version of a module from a registry."
    )
    program: str = setting("", enum=["tofu", "terraform"], description="Program to run; default: tofu if it is installed, else terraform.")  # fmt: skip
    variables: Mapping[str, Any] = _inputs("Inputs of the module, by name. max_lifetime: seconds after which the cloud ends a machine.", properties={"max_lifetime": {"type": "integer", "minimum": 1}})  # fmt: skip
    secrets: Mapping[str, Any] = _inputs("Inputs of the module whose values are secrets: {NAME: {secret: SECRET}}. The module declares them as ephemeral.", additionalProperties=_SECRET)  # fmt: skip
    gpus: int | None = setting(None, **integer_schema("Number of GPUs that jobs may use; default: all that the machine reports.", minimum=0))  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether the module is a directory of this machine."""
        return self.module.startswith(("./", "../", "/"))


@dataclass(frozen=True, slots=True)
class TerraformNode:
    """Record of a node: ``inputs`` of its module, public ``host_keys`` by name, and the ``output`` once it is complete.

    ``backend`` is that which the module declared at its first apply.
    """

    key: str
    cluster: str = ""
    name: str = ""
    lineage: str = ""
    settings: JsonObject = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    host_keys: Mapping[str, str] = field(default_factory=dict)
    output: Mapping[str, Any] = field(default_factory=dict)
    backend: str | None = None

    @property
    def id(self) -> str:
        """Name of the node's directory in the records."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]

    def path(self, name: str) -> str:
        """Return the key of one of its records: ``node``, ``state`` or ``lock``."""
        return f"nodes/{self.id}/{name}.json"

    @property
    def attempt(self) -> str:
        """What names the login key: the attempt that makes the nodes, as plans are older than the lineage."""
        return self.key.rpartition("/")[0]

    @property
    def login_path(self) -> Path:
        """File of the login key."""
        return keys.login_key_path(PROVIDER, self.cluster, self.attempt)

    def with_inputs(self) -> TerraformNode:
        """Set the inputs, which stay as they are, with the login key of this computer and a first host key."""
        login = keys.ensure_login_key(self.login_path)
        host = keys.derive_host_key(login, self.key)
        boot_timeout = TerraformSettings.read(self.settings).boot_timeout
        inputs = {
            "name": self.name,
            "key": self.id,
            "public_key": login.public,
            "user_data": user_data(LOGIN_USER, login, host, boot_timeout),
        }
        return replace(self, inputs=inputs, host_keys={keys.HOST_KEY: host.public})

    def node(self) -> Node:
        """Return the node, without paths; without an address until it is complete."""
        settings, output = TerraformSettings.read(self.settings), self.output
        details: dict[str, Any] = {"node": self.name, "lineage": self.attempt}
        details |= {name: output[name] for name in ("user", "port", "jump") if name in output}
        details["host_key"] = output.get("host_key") or self.host_keys[keys.HOST_KEY]
        return Node(
            self.cluster,
            self.name,
            output.get("address", ""),
            key=self.key,
            gpus=settings.gpus,
            details=details,
            **output_facts(settings, output),
        )


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield a source without a version."""
    settings = TerraformSettings.read(cluster.settings)
    if not (settings.is_local or settings.version or _COMMIT.search(settings.module)):
        yield SettingsProblem(
            ("module",), f"module {settings.module} is not pinned",
            "Set version for a module of a registry, add ?ref= and the 40 digits of a commit to another source, or write a directory as ./DIRECTORY.",
        )  # fmt: skip


def read_output(value: Any, node: str) -> dict[str, Any]:
    """Return the output ``node`` of a module; NodeError if it isn't a machine."""
    from jsonschema import Draft202012Validator  # slow to import

    if isinstance(value, dict):  # optional members may be null
        value = {name: member for name, member in value.items() if member is not None}
    ends = {"type": "array", "items": {"enum": ["guest", "provider"]}}
    members = {**HOST["properties"], "ends": ends}
    schema = {"type": "object", "required": ["address", "user"], "properties": members}
    for error in Draft202012Validator(schema).iter_errors(value):
        raise NodeError(
            f"the module's output node of {node} is invalid: {error.json_path}: {error.validator}",
            "It must be an object with address and user, and may have port, jump, host_key, price_per_hour and ends.",
            code="terraform-output",
        )
    if "host_key" in value:
        value["host_key"] = " ".join(value["host_key"].split()[:2])
    return dict(value)


def output_facts(settings: TerraformSettings, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a node that an output, also a planned one, says: its price, and what ends its machine."""
    facts = settings.node_facts(str(output.get("user")), output.get("price_per_hour"))
    ends = output.get("ends") or ()
    if "provider" in ends:
        facts["max_lifetime"] = settings.variables.get("max_lifetime")
    return facts if "guest" in ends else {**facts, "shutdown": ()}

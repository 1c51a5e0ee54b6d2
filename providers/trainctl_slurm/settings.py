"""Settings of a Slurm cluster: JSON Schema and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_ssh.hosts import DIRECTORY, HOST

_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.:,&|*()\[\]-]*$(?!\n)"
LOGIN = "login"
"""Name of the only node."""

SBATCH_OPTIONS = (
    "exclusive", "exclude", "nodelist", "reservation", "licenses", "switches", "contiguous", "mem-per-gpu",
    "cpus-per-gpu", "tmp", "wckey", "begin", "deadline", "network",
)  # fmt: skip
"""Options of sbatch that a manifest may set; all others belong to trainctl."""


def _word(description: str) -> JsonObject:
    return {"type": "string", "pattern": _WORD, "description": description}


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    kind: JsonObject = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "gres": _word("Type in Slurm's GRES, as in gpu:TYPE:COUNT; default: none."),
            "partition": _word("Partition that has these GPUs; default: that of the cluster."),
        },
    }
    option: JsonObject = {
        "anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}],
        "description": "Option of sbatch of this name.",
    }
    login: JsonObject = {"type": "string", "description": "Login host: a name or address."}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["shared_dir"],
        "properties": {
            "login": {
                "if": {"type": "string"},
                "then": login,
                "else": HOST,
                "description": "Login host, as a host of an ssh cluster; default: Slurm's commands of this machine.",
            },
            "shared_dir": {
                "type": "string",
                "pattern": DIRECTORY,
                "description": "Directory of trainctl that the login host and all nodes share.",
            },
            "partition": _word("Partition; default: Slurm's."),
            "account": _word("Account to charge; default: that of the user."),
            "qos": _word("Quality of service; default: that of the account."),
            "constraint": _word("Features that nodes must have."),
            "gpus": {
                "type": "object",
                "additionalProperties": kind,
                "description": "GRES type and partition by the type in compute.accelerator; default: its name in lower case.",
            },
            "node_cache": {
                "type": "string",
                "pattern": r"^[/$][^\x00-\x1f\x7f]*$(?!\n)",
                "description": "Directory on each node's own disk for copies of weights, such as $SLURM_TMPDIR; default: jobs read the shared directory.",
            },
            "requeue": {
                "type": "boolean",
                "default": True,
                "description": "Whether Slurm starts a run again after preemption or a node's failure.",
            },
            "sbatch": {
                "type": "object",
                "additionalProperties": False,
                "properties": dict.fromkeys(SBATCH_OPTIONS, option),
                "description": "More options of sbatch by name, without dashes; true for one without a value.",
            },
        },
    }


def gpu_kinds(cluster: ClusterSettings) -> Mapping[str, Mapping[str, str]]:
    """Return GRES type and partition by type of GPU, as far as they are set."""
    settings: Mapping[str, Any] = cluster.settings
    return settings.get("gpus") or {}


def partition_for(cluster: ClusterSettings, kind: str) -> str:
    """Return the partition with GPUs of a type; empty: Slurm's default."""
    own = gpu_kinds(cluster).get(kind, {}).get("partition")
    return own or str(cluster.settings.get("partition") or "")


def gres(cluster: ClusterSettings, kind: str, count: int) -> str:
    """Return the value of --gres for GPUs of a type."""
    kinds = gpu_kinds(cluster)
    typed = kinds[kind].get("gres") if kind in kinds else kind.lower()
    return ":".join(filter(None, ("gpu", typed, str(count))))


def hosts(cluster: ClusterSettings) -> ClusterSettings:
    """Return the settings of an ssh cluster with the login host only; its address is ``local`` without one."""
    login: Any = cluster.settings.get("login") or "local"
    host: Mapping[str, Any] = {"address": login} if isinstance(login, str) else login
    host = {"address": host.get("name"), **host, "name": LOGIN}
    return ClusterSettings(
        cluster.name, {"hosts": [{**host, "dir": cluster.settings["shared_dir"], "gpus": 0}]}
    )

"""Settings of a cluster, and the command line and script with which a run is submitted."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import replace
from trainctl.base.protocol.runs import WAITING_EXIT_CODE
from trainctl.plugin_api.provider import ClusterSettings, text_schema
from trainctl.plugin_api.scheduler import BatchRequest, BatchVariables
from trainctl_ssh.hosts import DIRECTORY, HOST

VARIABLES = BatchVariables(
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "CUDA_VISIBLE_DEVICES",
    "SLURMD_NODENAME",
    forwarded=("SLURM_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)
KEY = "trainctl:"
"""Comments of jobs begin with this and the key of the run."""

_MARGIN_SECONDS = 900
"""How long an interrupted job waits for Slurm to end or requeue it."""
_EXPORTED = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "SLURM_CONF")
"""Variables that jobs take from the submitting shell; the rest may be secret."""
_CLEAN = "exec env -i " + " ".join(f'${{{name}:+"{name}=${name}"}}' for name in _EXPORTED) + ' "$@"'
"""Not ``--export=NAMES``: for that Slurm starts a login shell on the node and waits for it."""
_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.:,&|*()\[\]-]*$(?!\n)"
LOGIN = "login"
"""Name of the only node."""

SBATCH_OPTIONS = (
    "exclusive", "exclude", "nodelist", "reservation", "licenses", "switches", "contiguous", "mem-per-gpu",
    "cpus-per-gpu", "tmp", "wckey", "begin", "deadline", "network",
)  # fmt: skip
"""Options of sbatch that a manifest may set; all others belong to trainctl."""


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    kind: JsonObject = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "gres": text_schema(
                _WORD, "Type in Slurm's GRES, as in gpu:TYPE:COUNT; default: none."
            ),
            "partition": text_schema(
                _WORD, "Partition that has these GPUs; default: that of the cluster."
            ),
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
            "shared_dir": text_schema(
                DIRECTORY, "Directory of trainctl that the login host and all nodes share."
            ),
            "partition": text_schema(_WORD, "Partition; default: Slurm's."),
            "account": text_schema(_WORD, "Account to charge; default: that of the user."),
            "qos": text_schema(_WORD, "Quality of service; default: that of the account."),
            "constraint": text_schema(_WORD, "Features that nodes must have."),
            "gpus": {
                "type": "object",
                "additionalProperties": kind,
                "description": "GRES type and partition by the type in compute.accelerator; default: its name in lower case.",
            },
            "node_cache": text_schema(
                r"^[/$][^\x00-\x1f\x7f]*$(?!\n)",
                "Directory on each node's own disk for copies of weights, such as $SLURM_TMPDIR; default: jobs read the shared directory.",
            ),
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


def job_name(key: str) -> str:
    """Return the name by which the accounting finds the job of a run without a slot."""
    return f"trainctl-{key}"


def sbatch_arguments(
    cluster: ClusterSettings, request: BatchRequest, variables: Sequence[str] = ()
) -> list[str]:
    """Return the command that submits the script on its standard input; ``variables`` are set for it."""
    sbatch = ["sbatch", "--parsable", *_options(cluster, request)]
    return ["sh", "-c", _CLEAN, "sh", *variables, *sbatch]


def with_margin(request: BatchRequest, limits: Iterable[float]) -> BatchRequest:
    """Add the margin to the time limit, as far as the limits of partitions allow in which the job fits."""
    needed = request.time_limit or 0.0
    allowed = [limit for limit in limits if limit >= needed]
    return replace(request, time_limit=min([needed + request.time_margin, *allowed]))


def order(request: BatchRequest) -> list[str]:
    """Return the changes by which ``scontrol update`` gives a pending job the request's slot and priority."""
    return [f"jobname={_name(request)}", f"nice={max(0, -request.priority)}"]


def _name(request: BatchRequest) -> str:
    """All jobs are singletons of their name, so that a limit can be set and removed while they are pending."""
    return request.slot or job_name(request.key)


def _options(cluster: ClusterSettings, request: BatchRequest) -> Iterator[str]:
    settings: Mapping[str, Any] = cluster.settings
    for name, value in (settings.get("sbatch") or {}).items():
        if value is not False:
            yield f"--{name}" if value is True else f"--{name}={value}"
    yield f"--job-name={_name(request)}"
    yield f"--comment={KEY}{request.key} {request.label}"
    yield f"--nodes={request.nodes}"
    yield "--ntasks-per-node=1"
    yield "--export=ALL"
    yield f"--output={request.log or '/dev/null'}"
    yield "--open-mode=append"
    yield "--requeue" if settings.get("requeue", True) else "--no-requeue"
    yield f"--signal=TERM@{request.grace:.0f}"
    if request.gpus:
        yield f"--gres={gres(cluster, request.gpu_kind, request.gpus)}"
    after = (":".join(["afterok", *request.after]),) if request.after else ()
    values = {
        "partition": partition_for(cluster, request.gpu_kind),
        **{name: settings.get(name) for name in ("account", "qos", "constraint")},
        "cpus-per-task": request.cpus,
        "mem": f"{math.ceil(request.memory / 2**20)}M" if request.memory else None,
        "time": math.ceil(request.time_limit / 60) if request.time_limit else None,
        "nice": -request.priority if request.priority < 0 else None,
        "dependency": ",".join((*after, "singleton")),
    }
    yield from (f"--{name}={value}" for name, value in values.items() if value)
    if request.after:
        yield "--kill-on-invalid-dep=yes"


def script(request: BatchRequest) -> str:
    """Return the batch script: one supervisor per node. It holds no secret."""
    command = shlex.join(["srun", "--kill-on-bad-exit=0", *request.command])
    return f"""\
#!/bin/sh
printf '%s\\n' {shlex.quote(request.stdin)} | {command}
code=$?
if [ $code -eq {WAITING_EXIT_CODE} ]; then  # interrupted: Slurm decides how the job ends
    sleep {_MARGIN_SECONDS}
fi
exit $code
"""

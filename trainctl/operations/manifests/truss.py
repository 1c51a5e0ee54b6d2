"""Conversion of a ``truss_train`` config to a manifest; a pure function.

Source of the fields: ``truss_train.definitions`` and ``truss.base.truss_config`` of truss 0.18.36.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.desired.build import build
from trainctl.errors import ManifestError, TrainctlError
from trainctl.manifest.read import read
from trainctl.model.address import slug
from trainctl.model.credentials import HIDDEN, looks_like_credential
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.model.specs.job_spec import NO_ACCELERATOR, CodeSpec
from trainctl.model.specs.runtime import RESERVED_PREFIXES, VARIABLE

_DEFAULT_MEMORY = "2Gi"
_CPUS_PER_GPU = 16
"""Of the service's instances, such as ``H200:2x8x128x1600``: 8 GPUs and 128 processors."""
_HOSTS = "hosts"
"""Name of the cluster of ``--hosts``."""
_TEN_YEARS = 5_256_000
"""Minutes of the SDK's -1."""
_COREWEAVE = "cw://"
_COREWEAVE_ENDPOINT = "https://cwobject.com"
"""https://docs.coreweave.com/products/storage/object-storage"""


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Cluster of the runs; absolute directories of the config (``source``) and of the manifest."""

    source: str
    directory: str
    cluster: str | None = None
    hosts: Sequence[str] = ()
    check_code: Callable[[CodeSpec], None] = lambda _: None
    """Raises TrainctlError for directories that a plan refuses."""


def convert(dump: Mapping[str, Any], target: ImportTarget) -> ImportedManifest:
    """Convert the dumps of a ``TrainingProject`` and its ``TrainingJob``; raise TrainctlError if invalid."""
    try:
        project = ConfigSection.of("project", dump["project"])
        job = ConfigSection.of("", dump["job"])
        name, job_name = project.take("name", ""), job.take("name")
        environment = (dump["job"].get("runtime") or {}).get("environment_variables") or {}
        variables = {
            value["name"]: variable
            for variable, value in reversed(environment.items())
            if isinstance(value, Mapping)
        }
        result = ImportedManifest(slug(name), slug(job_name or name), variables)
        sections = {"project": _project(result, project, name)}
        body = _job(result, job, target, job_name, name)
        if result.secrets:
            result.comments["secrets",] = "Read from the environment of trainctl."
            sections["secrets"] = {
                secret: {"from": "env", "name": variable}
                for secret, variable in result.secrets.items()
            }
        if target.hosts:
            cluster = {"provider": "ssh", "hosts": list(target.hosts)}
            sections["clusters"] = {target.cluster or _HOSTS: cluster}
        result.tree = {**sections, "jobs": {result.job: body}}
        job.finish(result)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        text = f"a value in the dump of the config has a wrong type: {error}"
        raise TrainctlError(text, "Make the dump with the SDK.", code="invalid-config") from error
    return result


def note_refusals(result: ImportedManifest, target: ImportTarget, name: str, text: str) -> None:
    """Note the errors of the new manifest ``name``, read alone; another file may declare the cluster."""
    files = {name: text.encode()}
    if target.cluster and not target.hosts:
        stub = {"clusters": {target.cluster: {"provider": "local"}}}
        files["stub.trainctl.yaml"] = json.dumps(stub).encode()
    try:
        build(read(Path(target.directory), files), provider_schema=lambda _: {"type": "object"})
    except ManifestError as error:
        for problem in error.diagnostics:
            if isinstance(problem, Diagnostic) and problem.severity is Severity.ERROR:
                text = f"{problem.summary}. {problem.detail}"
                result.note(ImportOutcome.DIFFERENT, problem.address or name, text)


def _project(result: ImportedManifest, project: ConfigSection, name: str) -> dict[str, Any]:
    section: dict[str, Any] = {"name": name}
    result.carried["project.name"] = name
    if result.project != name:
        result.comments["project", "name"] = f"Address: project.{result.project}"
    team = project.take("team_name")
    if team:
        section["labels"] = {"team": team}
        result.comments["project", "labels"] = "The SDK's team_name."
        result.carried["project.team_name"] = f"{team}, as the label team"
    project.rest.pop("job", None)
    project.finish(result)
    return section


def _job(
    result: ImportedManifest,
    job: ConfigSection,
    target: ImportTarget,
    name: str | None,
    project: str,
) -> dict[str, Any]:
    section: dict[str, Any] = {}
    if name:
        result.carried["name"] = name
    if name and name != result.job:
        section["name"] = name
    text = "In a git repository, the files that git doesn't ignore; .truss_ignore is read, too."
    result.comment(text, "code")
    if target.cluster or target.hosts:
        section["cluster"] = target.cluster or _HOSTS
    else:
        text = (
            "Runs on this machine. For others: clusters: {lab: {provider: ssh, hosts: [gpu-01]}}."
        )
        result.comment(text)
    workspace = _workspace(result, job.section("workspace"), target)
    if "workspace_root" not in workspace:
        section["code"] = os.path.relpath(target.source, target.directory)
    if workspace:
        section["workspace"] = workspace
    section["image"] = _image(result, job.section("image"))
    section["compute"] = _compute(result, job.section("compute"), target)
    weights = [weights_section(result, n, item) for n, item in enumerate(job.take("weights", []))]
    if weights:
        section["weights"] = weights
        result.carried["weights"] = ", ".join(item["source"] for item in weights)
    section["runtime"] = runtime_section(result, job.section("runtime"), project)
    priority = job.take("priority", 0)
    if priority:
        section["priority"] = priority
        result.carried["priority"] = str(priority)
    section |= _session(result, job.section("interactive_session"))
    if job.rest.pop("enable_baseten_workdir", True) is False:
        text = "The working directory is always $BT_WORKING_DIR: /b10/workspace in a container."
        result.note(ImportOutcome.CHANGED, "enable_baseten_workdir", text, "runtime")
    return section


def _workspace(
    result: ImportedManifest, workspace: ConfigSection, target: ImportTarget
) -> dict[str, Any]:
    def relative(path: str) -> str:
        absolute = os.path.join(target.source, path)  # noqa: PTH118 (text)
        return os.path.relpath(absolute, target.directory)

    def keep(key: str, path: str) -> bool:
        directories: dict[str, Any] = {} if key == "workspace_root" else {key: (relative(path),)}
        try:
            target.check_code(CodeSpec(top, **directories))
        except TrainctlError as error:
            text = f"{path}: {error.summary}. {error.detail}"
            result.note(ImportOutcome.DIFFERENT, f"workspace.{key}", text)
            return False
        return True

    root = workspace.take("workspace_root")
    top = relative(root or ".")
    section: dict[str, Any] = {}
    if root and keep("workspace_root", root):
        section["workspace_root"] = top
    for key in ("external_dirs", "exclude_dirs"):
        kept = [relative(path) for path in workspace.take(key, []) if keep(key, path)]
        if kept:
            section[key] = kept
    workspace.finish(result)
    if section:
        result.carried["workspace"] = ", ".join(section)
    return section


def _image(result: ImportedManifest, image: ConfigSection) -> dict[str, Any]:
    section = {"base_image": image.take("base_image", "")}
    result.carried["image.base_image"] = section["base_image"]
    auth = image.take("docker_auth")
    if auth:
        section["docker_auth"] = _with_secrets(result, auth)
        result.carried["image.docker_auth"] = str(auth.get("auth_method"))
    image.finish(result)
    return section


def _with_secrets(result: ImportedManifest, value: Any) -> Any:
    """Return a value without unset fields, with references to secrets of the manifest."""
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"name"}:
        return {"secret": result.secret(value["name"])}
    return {key: _with_secrets(result, item) for key, item in value.items() if item is not None}


def _compute(
    result: ImportedManifest, compute: ConfigSection, target: ImportTarget
) -> dict[str, Any]:
    nodes = compute.take("node_count", 1)
    section: dict[str, Any] = {
        "node_count": max(nodes, 1),
        "accelerator": _accelerator(compute.take("accelerator")),
    }
    if nodes < 1:
        text = f"{nodes} is not a number of nodes."
        result.note(ImportOutcome.DIFFERENT, "compute.node_count", text, "compute")
    result.carried["compute"] = f"{nodes} x {section['accelerator']}"
    cpus, memory = compute.take("cpu_count", 1), compute.take("memory", _DEFAULT_MEMORY)
    if cpus > 1:
        section["cpu_count"] = cpus
    if memory != _DEFAULT_MEMORY:
        section["memory"] = memory
    for key in ("cpu_count", "memory"):
        if key in section:
            text = f"{section[key]} is a limit here, not a minimum."
            result.note(ImportOutcome.CHANGED, f"compute.{key}", text, "compute", key)
    if cpus <= 1 or memory == _DEFAULT_MEMORY:
        text = "The SDK's defaults, cpu_count 1 and memory 2Gi, would be limits here: left out."
        result.comment(text, "compute")
    accelerator = section["accelerator"]
    if accelerator != NO_ACCELERATOR and target.cluster and not target.hosts:
        # As on the service's instance, if the cluster may be one of Slurm.
        text = "As on the service. Without it, Slurm gives one processor; hosts give all of theirs."
        result.comments.setdefault(("jobs", result.job, "compute", "cpu_count"), text)
        count = int(accelerator.partition(":")[2] or 1)
        section = {"cpu_count": _CPUS_PER_GPU * count} | section
    model = compute.take("availability_model", "dedicated")
    if model != "dedicated":
        section["availability_model"] = model
        result.carried["compute.availability_model"] = model
    compute.finish(result)
    return section


def _accelerator(value: Any) -> str:
    """Return ``TYPE`` or ``TYPE:COUNT``; a job of the SDK without one uses no GPU."""
    if isinstance(value, Mapping):
        kind, count = value.get("accelerator"), value.get("count", 1)
    else:
        kind, _, number = str(value or "").partition(":")
        count = int(number or 1)
    if not kind or count < 1:
        return NO_ACCELERATOR
    return str(kind) if count == 1 else f"{kind}:{count}"


def _session(result: ImportedManifest, session: ConfigSection) -> dict[str, Any]:
    trigger = session.take("trigger")
    minutes = session.take("timeout_minutes", 480)
    if not trigger:
        return {}
    result.carried["interactive_session"] = f"{trigger}, {minutes} minutes"
    result.note(
        ImportOutcome.CHANGED,
        "interactive_session",
        "Enter runs with trainctl ssh, without a login in a browser.",
    )
    for key in ("session_provider", "auth_provider"):
        session.rest.pop(key, None)
    minutes = minutes if minutes > 0 else _TEN_YEARS
    return {"interactive_session": {"trigger": trigger, "timeout_minutes": minutes}}


def weights_section(result: ImportedManifest, number: int, value: Any) -> dict[str, Any]:
    """Convert the entry with this number."""
    weights = ConfigSection.of(f"weights[{number}]", value)
    source, at = weights.take("source", ""), ("weights", number)
    section: dict[str, Any] = {
        "source": source.removesuffix("@"),
        "mount_location": weights.take("mount_location", ""),
    }
    if source.startswith(_COREWEAVE):
        section["source"] = f"s3://{source.removeprefix(_COREWEAVE)}"
        section["endpoint_url"] = _COREWEAVE_ENDPOINT
        text = "CoreWeave's object storage is read by its S3 interface."
        result.note(ImportOutcome.CHANGED, f"{weights.name}.source", text, *at)
    auth = {key: item for key, item in weights.take("auth", {}).items() if item is not None}
    secret = weights.take("auth_secret_name") or auth.get("auth_secret_name")
    if secret:
        named = {"auth_secret_name": result.secret(secret)}
        section |= {"auth": auth | named} if auth else named
    elif auth:
        section["auth"] = auth
    for key in ("allow_patterns", "ignore_patterns"):
        patterns = weights.take(key, [])
        if patterns:
            # Here ``*`` matches ``/``, unless a pattern starts with ``/``.
            section[key] = [
                pattern
                if not set("*?[") & set(pattern) or pattern.startswith("/")
                else f"/{pattern}"
                for pattern in patterns
            ]
        if patterns and section[key] != patterns:
            text = "A leading '/' keeps the service's meaning: '*' doesn't match '/'."
            result.note(ImportOutcome.CHANGED, f"{weights.name}.{key}", text, *at)
    weights.finish(result)
    return section


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
        values = {name: value for name, value in (config or {}).items() if value is not None}
        if values.get("enabled"):
            defaults = {"enable_legacy_hf_mount": False, "require_cache_affinity": True}
            section[key] = {
                name: value for name, value in values.items() if defaults.get(name) != value
            }
            others = [
                f"{name} {value}" for name, value in section[key].items() if name != "enabled"
            ]
            result.carried[f"runtime.{key}"] = ", ".join(["enabled", *others])
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


@dataclass(slots=True)
class ConfigSection:
    """A section of a dump; ``rest`` are the fields that were not taken yet."""

    name: str
    rest: dict[str, Any]

    @classmethod
    def of(cls, name: str, value: object) -> ConfigSection:
        """Copy a mapping; another value has no fields."""
        return cls(name, dict(value) if isinstance(value, Mapping) else {})

    def take(self, key: str, default: Any = None) -> Any:
        """Take the value of a field, the default if it is missing or None."""
        value = self.rest.pop(key, None)
        return default if value is None else value

    def section(self, key: str) -> ConfigSection:
        """Take a mapping."""
        return ConfigSection.of(f"{self.name}.{key}".lstrip("."), self.rest.pop(key, None))

    def finish(self, result: ImportedManifest) -> None:
        """Note the fields that were not taken: those of later versions of the SDK."""
        for key, value in self.rest.items():
            if value not in (None, [], {}, False):
                text = "trainctl doesn't know the field."
                result.note(ImportOutcome.MISSING, f"{self.name}.{key}".lstrip("."), text)

"""Write a directory that serves a checkpoint: its weights, commands, and a manifest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import StorageError, UsageError
from trainctl.inputs.serving import WEIGHTS, ServedCheckpoint, ServingEngine
from trainctl.model.address import Address, Kind, slug
from trainctl.model.source_uri import parse_source
from trainctl.model.specs.job_spec import JobSpec
from trainctl.operations.runs.checkpoints import (
    checkpoint_from,
    checkpoints_of,
    copy_checkpoint,
    exclude_from_code,
    require_absent,
    select_checkpoint,
)
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.workspace import Workspace

_TRAINING_ONLY = compile_lazily(
    r"(?:optimizer|scheduler|scaler|rng_state|random_states|training_args|trainer_state).*|.*/.*"
)
"""Files that only resuming needs; those in directories are shards of optimizers."""
_WEIGHTS = compile_lazily(r"(?:adapter_|pytorch_)?model.*\.(?:safetensors|bin)")
_SHARD = compile_lazily(r"(.+)-\d+-of-\d+(\.\w+)")
_NOT_MERGED = compile_lazily(r".*(?:prompt|prefix|p_tuning|cpt).*")
_PROCESSORS = {"preprocessor_config.json", "processor_config.json"}
_TOKENIZERS = {"tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model"}


def prepare_serving(
    workspace: Workspace,
    run: JobRun,
    rows: list[dict[str, Any]],
    checkpoint: str | None,
    base_model: str | None,
    cluster: str | None,
    engine: ServingEngine,
    *,
    force: bool = False,
) -> ServedCheckpoint:
    """Decide how one of the run's checkpoints is served; None means as it says. UsageError if it can't be served."""
    row = select_checkpoint(rows, run, checkpoint, 0, force=force)
    described = checkpoint_from(row, run)  # validates the name
    kind = described.type or "other"
    files = [file for file in row["files"] if not _TRAINING_ONLY.fullmatch(file["path"])]
    names = {str(file["path"]) for file in files}
    is_adapter = kind not in ("full", "whisper", "other")
    config = "adapter_config.json" if is_adapter else "config.json"
    reason = f"adapters of type {kind} can't be merged"
    detail = "Load it with peft in your own program."
    if not _NOT_MERGED.fullmatch(kind):
        is_complete = kind != "other" and any(map(_WEIGHTS.fullmatch, names)) and config in names
        reason = "" if is_complete else f"it lacks {config}, or weights"
        detail = "Save it in the format of transformers: model.save_pretrained(DIR)."
    if reason:
        summary = f"checkpoint {row['name']} of type {kind} can't be served: {reason}"
        raise UsageError(summary, detail, code="checkpoint-not-servable")
    spec = run.job.job_spec
    has_processor = bool(names & (_PROCESSORS if kind == "whisper" else _TOKENIZERS))
    base = None
    if is_adapter or not has_processor:
        named = base_model or described.base_model or ""
        base = resolve_base_model(named, spec, workspace.settings.directory)
    cluster = cluster or spec.cluster
    declared = workspace.desired.resources.get(Address(Kind.CLUSTER, cluster))
    if declared is None:
        raise UsageError(f"cluster {cluster} is not declared", "Name another one: --cluster NAME.")
    # Weights that are older than shards saved later, but are loaded instead of them.
    modified = {str(file["path"]): int(file["modified"]) for file in files}
    older = {
        match[1] + match[2]: path
        for path in sorted(modified)
        if (match := _SHARD.fullmatch(path))
        and modified.get(match[1] + match[2], modified[path]) < modified[path]
    }
    return ServedCheckpoint(
        {**row, "files": files},
        slug(str(run.job.address).removeprefix("job.")),
        engine,
        (cluster, declared.attributes),
        spec.compute.gpu_kind or ("none" if spec.compute.gpus == 0 else None),
        image=spec.in_container and engine is ServingEngine.VLLM and kind in ("full", "lora"),
        base=base,
        has_processor=has_processor,
        warnings=tuple(
            f"servers load {name}, which is older than {shard}: delete one of them, or save to an empty directory"
            for name, shard in older.items()
        ),
    )


def write_serving(
    workspace: Workspace, run: JobRun, serving: ServedCheckpoint, directory: Path
) -> str | None:
    """Write the directory, its manifest last; resumes a download. Return a warning if it is inside code."""
    require_absent(directory / WEIGHTS, "--out")
    added = directory / WEIGHTS if directory.exists() else directory
    copy_checkpoint(checkpoints_of(workspace, run), serving.row, directory / WEIGHTS, link=True)
    try:
        warning = exclude_from_code(workspace, added)
        for name, text in serving.files().items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {directory}: {error}") from error
    return warning


def resolve_base_model(named: str, spec: JobSpec, directory: Path) -> str:
    """Return the source of a base model: weights of the job at their revision, a Hub repository, or the URI itself.

    ``directory`` is that of the job's manifest. UsageError for other paths.
    """
    name = named.removeprefix("hf://").rstrip("/")
    for weights in spec.weights:
        is_mounted = f"/{name}".endswith(f"/{weights.mount_location.strip('/')}")
        uri = parse_source(weights.source)
        if is_mounted or name in (uri.location, weights.source.removeprefix("hf://")):
            if uri.is_local:
                return f"file://{(directory / uri.location).resolve()}"
            pin = (spec.weight_pins or {}).get(str(weights.address)) or ""
            source = weights.source.partition("@")[0]
            return f"{source}@{pin}" if re.fullmatch(r"[0-9a-f]{40}", pin) else weights.source
    try:
        return str(parse_source(named if ":" in named else f"hf://{named}"))
    except ValueError:
        raise UsageError(
            f"unknown base model: {named or 'the checkpoint names none'}",
            "Name it: --base-model OWNER/REPOSITORY, or the URI of a source.",
            code="unknown-base-model",
        ) from None

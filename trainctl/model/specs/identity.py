"""Identity of a run: the digest of all that its result depends on."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.base.json import JsonValue, digest
from trainctl.model.json_codec import to_json
from trainctl.model.specs.job_spec import JobSpec, JobWeights


def run_identity(
    job: JobSpec, image_digest: str | None, loaded: Sequence[str | None]
) -> str | None:
    """Return the identity of a run, without names of jobs and projects; None if something is unknown.

    ``loaded`` identifies the checkpoints that it starts from. Secrets count by name and version.
    """
    pins = job.weight_pins or {}
    weights = [_weights(item, pins.get(str(item.address))) for item in job.weights]
    needed = [
        job.code.digest,
        *loaded,
        *(pins.get(str(item.address)) for item in job.weights),
        image_digest if job.in_container else "host",
    ]
    if None in needed:
        return None
    runtime = to_json(job.runtime)
    load = job.runtime.load_checkpoint_config
    runtime["load_checkpoint_config"] = load and [load.enabled, load.download_folder]
    return digest(
        {
            "code": job.code.digest,
            "image": image_digest if job.in_container else None,
            "cluster": job.cluster,
            "compute": [job.compute.node_count, job.compute.accelerator],
            "runtime": runtime,
            "weights": weights,
            "mounts": to_json(job.mounts),
            "secrets": to_json(job.secrets),
            "loaded": list(loaded),
        }
    )


def _weights(item: JobWeights, pin: str | None) -> JsonValue:
    """Identify weights by their source, files and version; by name only where that is their location."""
    source = item.source.partition("@")[0]
    patterns = [list(item.allow_patterns or ()), list(item.ignore_patterns or ())]
    return [item.mount_location or str(item.address), source, patterns, pin]

"""Which secrets a run's node keeps on its disk, where their declarations say so (`persist`)."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.desired.values import CheckpointStore, SecretSpec
from trainctl.manifest.types.base import SecretReference
from trainctl.manifest.types.job import Job


def kept_secrets(
    section: Job, secrets: Mapping[str, SecretSpec], store: CheckpointStore
) -> list[str]:
    """The names of all that its run is given, if each of them is declared so: with one missing it would have to wait for that all the same.

    Of a run on several nodes none is kept: one that lost a rank begins anew as another run.
    """
    if section.compute.node_count > 1:
        return []
    values = section.runtime.environment_variables.values()
    needed = {one.secret for one in values if isinstance(one, SecretReference)}
    loading = section.runtime.load_checkpoint_config
    in_bucket = store.url is not None and not store.url.startswith("file:")
    if in_bucket and (
        section.runtime.checkpointing_config.enabled or (loading and loading.enabled)
    ):
        if store.secret is None:
            return []  # the environment's, which no declaration speaks of
        needed.add(store.secret)
    kept = all(name in secrets and secrets[name].persist for name in needed)
    return sorted(needed) if kept else []

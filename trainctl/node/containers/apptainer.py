"""How apptainer is called. Its processes are children of ours, run as the user, and read what they need from variables."""

from __future__ import annotations

from typing import Dict, List, Tuple

from trainctl.node.containers.container_program import FIRST
from trainctl.node.containers.engines import APPTAINER
from trainctl.node.containers.oci import Wanted, mount

_PREFIX = "APPTAINERENV_"
_ROOT_INSIDE = ("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command")
"""Root of the container is the user and nobody else is in it, so that all that is written is the user's."""


def arguments(wanted: Wanted, *, root: bool) -> Tuple[str, ...]:
    """The command line; ``root``: whether its caller is root, who else is root in the container alone.

    ``--compat`` is what other engines do: nothing of the host's, values of variables as they are, and our program as process 1.
    ``/tmp`` and the home are directories of the host, as they would else be in memory, and small. ``/dev/shm`` is as large as
    the kernel makes it, half of the memory.
    """
    limits: List[str] = []
    if wanted.memory is not None:
        limits += ["--memory", str(wanted.memory)]
    if wanted.cpus is not None:
        limits += ["--cpus", str(wanted.cpus)]
    return (
        *(APPTAINER, "exec", "--compat", "--workdir", wanted.temporary, "--pwd", wanted.work),
        *(() if root else _ROOT_INSIDE),
        *limits,
        *(("--nv",) if wanted.gpus else ()),
        *(word for bind in wanted.binds for word in ("--mount", mount(bind))),
        *(wanted.image, "/bin/sh", str(FIRST)),
    )


def variables(wanted: Wanted) -> Dict[str, str]:
    """The job's variables, as apptainer takes them from its own; all GPUs can be seen, so that the claimed are named."""
    found = dict(wanted.variables)
    if wanted.gpus and wanted.gpus[0] != "all":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(wanted.gpus)
    return {_PREFIX + name: value for name, value in found.items()}

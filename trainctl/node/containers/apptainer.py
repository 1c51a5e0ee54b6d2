"""How apptainer is called. Its processes are children of ours, run as the user, and read what they need from variables."""

from __future__ import annotations

from typing import Dict, List, Tuple

from trainctl.node.containers.container_program import FIRST
from trainctl.node.containers.engines import APPTAINER
from trainctl.node.containers.oci import Bind, Wanted
from trainctl.node.system.failure import Failure

_PREFIX = "APPTAINERENV_"


def arguments(wanted: Wanted) -> Tuple[str, ...]:
    """The command line. Host memory is shared as it is, so that sizes are not asked for."""
    limits: List[str] = []
    if wanted.memory is not None:
        limits += ["--memory", str(wanted.memory)]
    if wanted.cpus is not None:
        limits += ["--cpus", str(wanted.cpus)]
    return (
        *(APPTAINER, "exec", "--containall", "--writable-tmpfs", "--pwd", wanted.work),
        *limits,
        *(("--nv",) if wanted.gpus else ()),
        *(word for bind in wanted.binds for word in ("--bind", _bind(bind))),
        *(wanted.image, "/bin/sh", str(FIRST)),
    )


def variables(wanted: Wanted) -> Dict[str, str]:
    """The job's variables, as apptainer takes them from its own; all GPUs can be seen, so that the claimed are named."""
    found = dict(wanted.variables)
    if wanted.gpus and wanted.gpus[0] != "all":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(wanted.gpus)
    return {_PREFIX + name: value for name, value in found.items()}


def _bind(bind: Bind) -> str:
    for path in (bind.source, bind.target):
        if "," in path or ":" in path:
            raise Failure(
                "request", f"{path!a} can't be mounted: apptainer takes no comma or colon there"
            )
    return f"{bind.source}:{bind.target}" + (":ro" if bind.read_only else "")

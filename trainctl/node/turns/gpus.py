"""The GPUs of a host that jobs may claim, and how a job is shown only its own."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence

from trainctl.base.failure import Failure
from trainctl.node.turns.gpu_tools import AMD, Gpu, reported

Reports = Callable[[], List[Gpu]]
"""Says which GPUs there are. Asking the host's tools may take seconds."""


def usable(declared: Optional[int], reports: Reports = reported) -> List[Gpu]:
    """The GPUs that jobs may claim: the first ``declared`` of those reported, by index, or so many that nothing reports.

    None leaves it to the host. Failure where more are declared than there are.
    """
    if declared == 0:
        return []
    found = sorted(reports())
    if not found:
        return [Gpu(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(found):
        raise Failure(
            "missing", f"{declared} GPUs are declared for this node and it has {len(found)}"
        )
    return found[:declared]


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables that show a job its own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBLE, "")}
"""What hides every GPU from a program that has claimed none."""


def variables(claimed: Sequence[Gpu]) -> Dict[str, str]:
    """What shows a job its own GPUs and no others, by their numbers in the order of the bus."""
    numbers = ",".join(str(one.number) for one in claimed)
    found = {"BT_NUM_GPUS": str(len(claimed))}
    if claimed and claimed[0].vendor == AMD:
        return {**found, "HIP_VISIBLE_DEVICES": numbers}
    return {**found, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

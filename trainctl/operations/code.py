"""The code that a run ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from trainctl.errors import NodeError, NodeForgot, TrainctlError
from trainctl.jobs.environment import file_name
from trainctl.operations.runs import Run, control
from trainctl.operations.streaming import pieces
from trainctl.operations.unpacking import refuse_existing, unpack
from trainctl.operations.workspace import Workspace


def download_code(workspace: Workspace, run: Run, target: Path) -> Path:
    """The code tree, byte for byte as the run's nodes unpacked it, as ``<project>_<job>_<run id>`` in ``target``."""
    record = run.record
    what = f"the code of run {record.number} ({record.id})"
    place = target / f"{run.project}_{file_name(run.job.address)}_{record.id}"
    refuse_existing(place, "--target-directory")
    code = record.code
    if code is None or not record.ranks:
        raise TrainctlError(
            f"{what} was not kept: the run never reached a node", code="no-such-run"
        )
    found = hashlib.sha256()

    def data() -> Iterator[bytes]:
        runs = control(workspace)
        for piece in pieces(lambda take: runs.read_code(record, code, take)):
            found.update(piece)
            yield piece

    def check() -> None:
        if record.code_archive and found.hexdigest() != record.code_archive:
            raise NodeError(
                f"{what} is not what the run unpacked",
                f"{record.ranks[0].node} sent an archive of sha256 {found.hexdigest()}, recorded is {record.code_archive}.",
            )

    try:
        unpack(data(), place, what, check=check)
    except NodeForgot as error:
        raise NodeForgot(f"{what} is gone from {record.ranks[0].node}", error.summary) from error
    return place

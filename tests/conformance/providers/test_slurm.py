"""The slurm provider against the suite for batch systems, over a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tests.support.machines.slurm import SlurmCluster
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.testing.scheduler import SchedulerConformance
from trainctl_slurm import SlurmProvider


class TestSlurm(SchedulerConformance):
    @pytest.fixture
    def provider(
        self, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[SlurmProvider]:
        for name, value in slurm.variables.items():
            monkeypatch.setenv(name, value)
        with closing(SlurmProvider()) as provider:
            yield provider
        slurm.cancel_all()

    @pytest.fixture
    def cluster(self, slurm: SlurmCluster, tmp_path: Path) -> ClusterSettings:
        shared = slurm.shared_dir / tmp_path.name
        return ClusterSettings("hpc", {"shared_dir": str(shared), "partition": "gpu"})

    @pytest.fixture
    def silent(self, slurm: SlurmCluster) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def stopped() -> Iterator[None]:
            slurm.stop_controller()
            try:
                yield
            finally:
                slurm.start_controller()

        return stopped

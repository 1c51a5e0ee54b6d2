"""Conformance suite of providers whose runs a batch system places."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider
from trainctl.plugin_api.scheduler import BatchJob, BatchRequest, BatchState, SchedulesJobs
from trainctl.testing.provider import ProviderFixtures

_SECONDS = 60.0


class SchedulerConformance(ProviderFixtures):
    """Fixtures to override: ``provider``, ``cluster`` and ``silent``."""

    @pytest.fixture
    def silent(self) -> Callable[[], AbstractContextManager[None]]:
        """A function that makes the batch system silent for a block."""
        raise NotImplementedError

    @pytest.fixture
    def scheduler(self, provider: Provider) -> SchedulesJobs:
        """The provider as a batch system."""
        assert provider.capabilities.schedules_jobs
        assert isinstance(provider, SchedulesJobs)
        return provider

    @pytest.fixture
    def node(self, provider: Provider, cluster: ClusterSettings) -> Iterator[Node]:
        """The only node."""
        (planned,) = provider.plan(cluster)
        node = provider.create(cluster, planned.name, "key")
        yield node
        provider.delete(node)

    @pytest.fixture
    def request_(self, node: Node) -> BatchRequest:
        """A job that writes what it read."""
        script = "import sys; print(sys.stdin.read())"
        return BatchRequest(
            key=f"key-{time.time_ns()}",
            name="conformance",
            label="job.conformance run 1 (abc)",
            command=(node.python, "-c", script),
            stdin='it\'s "quoted"',
            log=f"{node.root}/conformance.log",
        )

    def test_a_job_reads_its_input_and_is_found_by_its_key(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, request_: BatchRequest
    ) -> None:
        """Other keys are not found."""
        assert dict(scheduler.find_jobs(cluster, node, [request_.key])) == {}

        number = scheduler.submit_job(cluster, node, request_)

        job = _wait(scheduler, cluster, node, request_.key)
        assert (job.id, job.state, job.restarts) == (number, BatchState.COMPLETED, 0)
        assert request_.stdin in Path(request_.log).read_text(encoding="utf-8")
        assert dict(scheduler.find_jobs(cluster, node, ["another-key"])) == {}

    def test_a_failed_job_is_failed(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, request_: BatchRequest
    ) -> None:
        """Its exit code decides."""
        command = (node.python, "-c", "raise SystemExit(3)")
        scheduler.submit_job(cluster, node, replace(request_, command=command))
        assert _wait(scheduler, cluster, node, request_.key).state is BatchState.FAILED

    def test_a_cancelled_job_ends_and_can_be_cancelled_again(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, request_: BatchRequest
    ) -> None:
        """A job that waits for it is cancelled as well, or never starts."""
        command = (node.python, "-c", "import time; time.sleep(600)")
        number = scheduler.submit_job(cluster, node, replace(request_, command=command))
        later = replace(request_, key=f"{request_.key}-later", after=(number,))
        scheduler.submit_job(cluster, node, later)
        job = scheduler.find_jobs(cluster, node, [request_.key])[request_.key]

        scheduler.cancel_job(cluster, node, job)
        assert _wait(scheduler, cluster, node, request_.key).state is BatchState.CANCELLED
        scheduler.cancel_job(cluster, node, job)

        waiting = scheduler.find_jobs(cluster, node, [later.key])[later.key]
        assert waiting.state in (BatchState.PENDING, BatchState.CANCELLED)
        scheduler.cancel_job(cluster, node, waiting)

    def test_a_signalled_job_decides_when_it_ends(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, request_: BatchRequest
    ) -> None:
        """Its command gets SIGTERM, and the job lasts as long as the command."""
        script = "import signal; signal.pthread_sigmask(0, [15]); print('up', flush=True); signal.sigwait([15]); print('saved')"
        scheduler.submit_job(cluster, node, replace(request_, command=(node.python, "-c", script)))
        log, until = Path(request_.log), time.monotonic() + _SECONDS
        while not (log.exists() and "up" in log.read_text()) and time.monotonic() < until:
            time.sleep(0.2)

        job = scheduler.find_jobs(cluster, node, [request_.key])[request_.key]
        scheduler.signal_job(cluster, node, job)
        assert _wait(scheduler, cluster, node, request_.key).state is BatchState.COMPLETED
        assert "saved" in log.read_text()

    def test_a_forecast_submits_nothing(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, request_: BatchRequest
    ) -> None:
        """It is a time or a refusal."""
        assert scheduler.forecast(cluster, node, request_).start is not None
        impossible = replace(request_, cpus=100_000)
        assert scheduler.forecast(cluster, node, impossible).refusal
        assert dict(scheduler.find_jobs(cluster, node, [request_.key])) == {}

    def test_machines_and_partitions_agree(
        self, scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node
    ) -> None:
        """There are no more free GPUs than GPUs."""
        partitions = scheduler.partitions(cluster, node)
        machines = scheduler.machines(cluster, node)
        assert len({machine.name for machine in machines}) == len(machines) > 0
        for partition in partitions:
            assert 0 <= partition.gpus_free <= partition.gpus_total
            assert 0 < partition.nodes <= len(machines)

    def test_a_silent_batch_system_is_unreachable_within_seconds(
        self,
        scheduler: SchedulesJobs,
        cluster: ClusterSettings,
        node: Node,
        silent: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """It is never taken for one without jobs."""
        with silent(), pytest.raises(NodeUnreachable):
            scheduler.find_jobs(cluster, node, ["key"])


def _wait(scheduler: SchedulesJobs, cluster: ClusterSettings, node: Node, key: str) -> BatchJob:
    """Wait for the end of a job."""
    until = time.monotonic() + _SECONDS
    while True:
        job = scheduler.find_jobs(cluster, node, [key])[key]
        if job.state.ended or time.monotonic() > until:
            return job
        time.sleep(0.2)

"""The built-in logs, and the reference they are compared with, pass the suite that plugins' logs pass."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.sealed import sealed_log
from tests.support.servers.bucket_states import Cloud, bucket_log, clouds
from tests.support.storage.log_faults import FaultyStore, StoreFault, StoreFaults
from trainctl.plugin_api.discovery import open_state
from trainctl.plugin_api.state import StateLog
from trainctl.store.objects import MemoryObjects
from trainctl.testing.state_log import Inject, StateLogConformance
from trainctl_state import BucketLog, ObjectLog, directory_objects

Logs = tuple[StateLog, StateLog]
_SAME_AS = {"lost": StoreFault.LOSE, "412": StoreFault.REFUSE, "late": StoreFault.DELAY}
"""What the faults of a server are to an object store; the others are failures."""


class TestDirectory(StateLogConformance):
    @pytest.fixture
    def logs(self, tmp_path: Path) -> Logs:
        url = (tmp_path / "a b%20ü" / "state").as_uri()
        return open_state(url), open_state(url)


class TestMemory(StateLogConformance):
    @pytest.fixture
    def logs(self) -> Logs:
        url = f"memory:{uuid.uuid4()}"
        return open_state(url), open_state(url)


class TestReference(StateLogConformance):
    @pytest.fixture
    def logs(self) -> Logs:
        log = MemoryLog()
        return log, log


class _WithFaults(StateLogConformance):
    @pytest.fixture
    def faults(self) -> StoreFaults:
        return StoreFaults()

    @pytest.fixture
    def inject(self, faults: StoreFaults) -> Inject:
        return lambda name: faults.plant(_SAME_AS.get(name, StoreFault.FAIL))


class TestFaultyDirectory(_WithFaults):
    @pytest.fixture
    def logs(self, tmp_path: Path, faults: StoreFaults) -> Logs:
        stores = [FaultyStore(directory_objects(tmp_path / "state"), faults) for _ in range(2)]
        return ObjectLog(stores[0], "x"), ObjectLog(stores[1], "x")


class TestFaultyMemory(_WithFaults):
    """As a bucket is used, and without a server."""

    @pytest.fixture
    def logs(self, faults: StoreFaults) -> Logs:
        store = FaultyStore(MemoryObjects(), faults)
        return BucketLog(store, "x"), BucketLog(store, "x")


class TestSealed(_WithFaults):
    """Two clients on two machines, which encrypt a log that is used as a bucket is."""

    @pytest.fixture
    def logs(self, faults: StoreFaults, tmp_path: Path) -> Logs:
        store = FaultyStore(MemoryObjects(), faults)
        return sealed_log(BucketLog(store, "x"), tmp_path / "a"), sealed_log(
            BucketLog(store, "x"), tmp_path / "b"
        )


class TestSealedDirectory(StateLogConformance):
    """Two clients of one user, who share a memory."""

    @pytest.fixture
    def logs(self, tmp_path: Path) -> Logs:
        url = (tmp_path / "state").as_uri()
        return sealed_log(open_state(url), tmp_path / "a"), sealed_log(
            open_state(url), tmp_path / "a"
        )


def _long(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["s3", _long("google"), _long("azure")])
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """A server of buckets, for all tests."""
    with clouds(str(request.param), tmp_path_factory.mktemp("server")) as cloud:
        yield cloud


@pytest.mark.integration
class TestBuckets(StateLogConformance):
    """S3, Google's and Azure's servers, each behind a proxy that loses answers."""

    appenders, each = 4, 4

    @pytest.fixture
    def logs(self, cloud: Cloud) -> Logs:
        prefix = uuid.uuid4().hex
        return bucket_log(cloud, prefix), bucket_log(cloud, prefix)

    @pytest.fixture
    def inject(self, cloud: Cloud) -> Inject:
        return cloud.proxy.faults.append

"""The aws provider against the suite, over EC2 on this machine with a real sshd per instance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.servers.ec2 import Ec2Server
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.testing.provider import ProviderConformance
from trainctl_aws import AwsProvider

pytestmark = pytest.mark.integration


@pytest.fixture
def provider(
    ec2: Ec2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AwsProvider]:
    """A provider with the account of the server."""
    for name, value in {**ec2.environment, "XDG_DATA_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with closing(AwsProvider()) as provider:
        yield provider


@pytest.fixture
def cluster(ec2: Ec2Server) -> ClusterSettings:
    """Two small machines."""
    return ClusterSettings(
        "lab",
        {
            "region": "us-east-1",
            "instance_types": ["t3.micro"],
            "nodes": 2,
            "ssh_from": ["127.0.0.0/8"],
            "address": "private",
            "port": ec2.ssh_port,
        },
        "lineage",
    )


class TestAwsProvider(ProviderConformance):
    """The suite for providers."""

    @pytest.fixture
    def provider(self, provider: AwsProvider) -> AwsProvider:
        """The provider."""
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        """Two small machines."""
        return cluster

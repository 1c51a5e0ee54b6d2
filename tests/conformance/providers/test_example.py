"""The example of a provider that creates machines passes the conformance suite."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainctl.plugin_api.provider import ClusterSettings, Provider
from trainctl.testing.machines import MachinesConformance, PlatformFaults
from trainctl.testing.provider import ProviderConformance

EXAMPLE = Path(__file__).parents[3] / "examples" / "provider"


class Rented:
    @pytest.fixture
    def provider(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
        monkeypatch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module("trainctl_rented").RentedProvider()
        del sys.modules["trainctl_rented"]

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> ClusterSettings:
        return ClusterSettings("lab", {"base": str(tmp_path), "nodes": 2})


class TestRentedProvider(Rented, ProviderConformance):
    """The suite for providers."""


class TestRentedMachines(Rented, MachinesConformance):
    """Its platform deletes directories only."""

    @pytest.fixture
    def faults(self) -> PlatformFaults:
        return PlatformFaults(lambda node: shutil.rmtree(Path(node.root).parent))

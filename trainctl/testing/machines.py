"""Conformance suite of providers that create machines: faults of the platform, offers and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from trainctl.base.lazy_dataclass import dataclass
from trainctl.plugin_api.machines import ListsMachines, OffersMachines
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.testing.provider import ProviderFixtures, listed_keys

KEY = "lineage/cluster.lab/machines"


@dataclass(frozen=True, slots=True)
class PlatformFaults:
    """Functions that make the platform behave as it may; None if it never does.

    ``lose_machine`` deletes a machine outside trainctl. The others concern the next creation: its answer is lost,
    it is throttled once, or lists don't show its machine for a while.
    """

    lose_machine: Callable[[Node], None]
    lose_answer: Callable[[], None] | None = None
    throttle: Callable[[], None] | None = None
    lag: Callable[[], None] | None = None


class MachinesConformance(ProviderFixtures):
    """Fixtures to override: ``provider``, ``cluster`` and ``faults``."""

    @pytest.fixture
    def faults(self) -> PlatformFaults:
        """The faults of the platform."""
        raise NotImplementedError

    @pytest.fixture
    def name(self, provider: Provider, cluster: ClusterSettings) -> Iterator[str]:
        """Name of a node; what was created is deleted afterwards."""
        yield provider.plan(cluster)[0].name
        for key in (KEY, f"{KEY}/2"):
            if node := provider.find(cluster, key):
                provider.delete(node)

    def test_a_machine_deleted_by_another_user_is_missing_and_created_again(
        self, provider: Provider, cluster: ClusterSettings, faults: PlatformFaults, name: str
    ) -> None:
        """Deleting it again is no error."""
        node = provider.create(cluster, name, KEY)
        faults.lose_machine(node)

        assert provider.read(node) is ResourceStatus.MISSING
        assert provider.find(cluster, KEY) is None
        provider.delete(node)

        repeated = provider.create(cluster, name, KEY)  # by the request that made the lost one
        assert provider.read(repeated) is ResourceStatus.PRESENT
        again = provider.create(cluster, name, f"{KEY}/2")
        assert provider.read(again) is ResourceStatus.PRESENT

    @pytest.mark.parametrize("fault", ["lose_answer", "throttle", "lag"])
    def test_a_fault_while_creating_leaves_one_machine(
        self,
        provider: Provider,
        cluster: ClusterSettings,
        faults: PlatformFaults,
        name: str,
        fault: str,
    ) -> None:
        """It is found by its key, and a repetition finds it, too."""
        cause = getattr(faults, fault)
        if cause is None:
            pytest.skip(f"the platform has no fault {fault}")
        cause()

        node = provider.create(cluster, name, KEY)

        assert provider.find(cluster, KEY) == node
        assert provider.create(cluster, name, KEY) == node
        assert len(listed_keys(provider, cluster)) <= 1

    def test_listed_machines_have_our_marks_and_can_be_ended(
        self, provider: Provider, cluster: ClusterSettings, name: str
    ) -> None:
        """Ending twice is no error."""
        if not isinstance(provider, ListsMachines):
            pytest.skip("the provider lists no machines")
        provider.create(cluster, name, KEY)
        found = (machine.node for machine in provider.list_machines(cluster))
        (node,) = [node for node in found if node.key == KEY]
        assert (node.cluster, node.name) == (cluster.name, name)

        provider.delete(node)
        provider.delete(node)

        assert listed_keys(provider, cluster) == []

    def test_offers_have_prices_with_their_date(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """They are the same each time, also without a connection, and cost nothing to ask for."""
        if not isinstance(provider, OffersMachines):
            pytest.skip("the provider lists no offers")
        offers = provider.offers(cluster)
        assert offers
        assert [*provider.offers(cluster)] == [*offers]
        for offer in (*offers, *provider.offers(cluster, online=False)):
            assert offer.price_per_hour is None or offer.price_per_hour >= 0
            assert offer.price_source
            assert offer.price_date
        assert listed_keys(provider, cluster) == []

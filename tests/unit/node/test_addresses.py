"""Where a host serves weights to others: first where its caller's connection came to, over TLS unless that is private."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.base.network.addresses import (
    ServingAddresses,
    connection_address,
    is_private,
    network_id,
)

PRIVATE = "127.0.0.9 10.1.2.3 172.31.0.1 192.168.0.7 100.64.0.1 ::1 fd00::7 fe80::1"
PUBLIC = "8.8.8.8 172.32.0.1 203.0.113.7 2001:4860:4860::8888 2001:db8::1"


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("", "127.0.0.1"),
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("fe80::2%eth0 50000 fe80::1%eth0 22", "fe80::1"),
        ("UNKNOWN 65535 UNKNOWN 65535", "127.0.0.1"),
    ],
)
def test_the_connection_address_is_the_servers_side_of_ssh(
    connection: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    assert connection_address() == address


def test_addresses_that_the_internet_cant_route_are_private() -> None:
    """Loopback, private networks, carriers' networks, tunnels and links."""
    assert [address for address in PRIVATE.split() if not is_private(address)] == []
    assert [address for address in PUBLIC.split() if is_private(address)] == []


@pytest.mark.parametrize("case", cases("node/serving_addresses"))
def test_all_addresses_are_offered(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.9 50000 {case['came_to']} 22")
    monkeypatch.setattr("trainctl.base.network.addresses.addresses", lambda: case["others"])
    if case.get("lacks_tls"):
        monkeypatch.setattr("trainctl.base.network.addresses.find_spec", lambda name: None)

    serving = ServingAddresses.here()
    document = serving.to_json()

    assert serving.addresses == case["offers"]
    assert document["tls"] is case.get("tls", False)
    assert document["why"].startswith(case.get("why", ""))
    assert bool(document["why"]) == ("why" in case)
    assert document["loopback"] == (network_id() if case["came_to"] == "127.0.0.1" else "")

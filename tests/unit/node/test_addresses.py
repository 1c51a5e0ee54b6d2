"""Where a host hands out weights to others: first where its caller's connection came to, over TLS unless that is private."""

from __future__ import annotations

import pytest

from trainctl.base.network.addresses import (
    ServingAddresses,
    connection_address,
    is_private,
    network_id,
)


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("", "127.0.0.1"),
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("10.0.0.9 50000 203.0.113.7 22", "203.0.113.7"),
        ("fe80::2%eth0 50000 fe80::1%eth0 22", "fe80::1"),
        ("UNKNOWN 65535 UNKNOWN 65535", "127.0.0.1"),
    ],
)
def test_it_is_where_the_caller_came_to(
    connection: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's side of the connection, without its zone; loopback without a connection, or where sshd was given one that is no socket."""
    monkeypatch.setenv("SSH_CONNECTION", connection)

    assert connection_address() == address


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.9",
        "10.1.2.3",
        "172.31.0.1",
        "192.168.0.7",
        "100.64.0.1",
        "::1",
        "fd00::7",
        "fe80::1",
    ],
)
def test_what_the_world_has_no_way_to_is_private(address: str) -> None:
    """Loopback, private networks, those of carriers and tunnels, and links: plain HTTP is good enough there."""
    assert is_private(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "172.32.0.1", "203.0.113.7", "2001:4860:4860::8888", "2001:db8::1"]
)
def test_everything_else_takes_tls(address: str) -> None:
    """Also addresses of which one can't know what they are used for."""
    assert not is_private(address)


CAME, PUBLIC, PRIVATE = "10.0.0.1", "203.0.113.7", "10.88.0.1"
LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("came_to", "others", "lacks_tls", "addresses", "tls", "why"),
    [
        (CAME, [CAME, PRIVATE, PUBLIC], False, [CAME, PRIVATE, PUBLIC], False, ""),
        (PUBLIC, [PRIVATE, PUBLIC], False, [PUBLIC, PRIVATE], True, ""),
        (PUBLIC, [PRIVATE, PUBLIC], True, [PRIVATE], False, ""),
        (PUBLIC, [PUBLIC], True, [], False, "203.0.113.7 is a public address, and /"),
        (LOOPBACK, [PRIVATE], False, [LOOPBACK, PRIVATE], False, ""),
        (LOOPBACK, [PUBLIC], False, [LOOPBACK, PUBLIC], True, ""),
        (LOOPBACK, [], False, [LOOPBACK], False, "SSH connects to 127.0.0.1, and "),
        (LOOPBACK, [PUBLIC], True, [LOOPBACK], False, "203.0.113.7 is a public address, and /"),
    ],
)
def test_all_addresses_are_offered(
    came_to: str,
    others: list[str],
    lacks_tls: bool,
    addresses: list[str],
    tls: bool,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller's first; what isn't private needs TLS. Where nobody on another host would get anything that is said, and why."""
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.9 50000 {came_to} 22")
    monkeypatch.setattr("trainctl.base.network.addresses.addresses", lambda: others)
    if lacks_tls:
        monkeypatch.setattr("trainctl.base.network.addresses.find_spec", lambda name: None)

    found = ServingAddresses.here()
    told = found.to_json()

    assert found.addresses == addresses
    assert told["tls"] is tls
    assert told["why"].startswith(why)
    assert bool(told["why"]) == bool(why)
    assert told["loopback"] == (network_id() if came_to == LOOPBACK else "")

"""Where a host hands out weights to others: where its caller's connection came to, over TLS unless that is private."""

from __future__ import annotations

import pytest

from trainctl.node.system.addresses import is_private, own_address, serving_terms


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("", "127.0.0.1"),
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("10.0.0.9 50000 203.0.113.7 22", "203.0.113.7"),
        ("fe80::2%eth0 50000 fe80::1%eth0 22", "fe80::1"),
    ],
)
def test_it_is_where_the_caller_came_to(
    connection: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's side of the connection, without its zone; loopback without a connection."""
    monkeypatch.setenv("SSH_CONNECTION", connection)

    assert own_address() == address


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
def test_what_the_world_has_no_way_to_is_private(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback, private networks, those of carriers and tunnels, and links: plain HTTP is good enough there."""
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.9 50000 {address} 22")

    assert is_private(address)
    assert serving_terms() == {"tls": False, "why": ""}


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "172.32.0.1", "203.0.113.7", "2001:4860:4860::8888", "2001:db8::1"]
)
def test_everything_else_takes_tls(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also addresses of which one can't know what they are used for."""
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.9 50000 {address} 22")

    assert not is_private(address)
    assert serving_terms() == {"tls": True, "why": ""}


def test_a_python_without_tls_serves_on_private_addresses_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why it doesn't is said, with the address and the interpreter."""
    monkeypatch.setattr("trainctl.node.system.addresses.find_spec", lambda name: None)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 203.0.113.7 22")

    assert serving_terms()["why"].startswith("203.0.113.7 is no private address, and /")

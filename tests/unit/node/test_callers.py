"""Where a host may hand out weights: the address that its caller's connection came to, if that is private."""

from __future__ import annotations

import pytest

from trainctl.node.caller import own_address
from trainctl.node.failure import Failure


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("", "127.0.0.1"),
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("fe80::2%eth0 50000 fe80::1%eth0 22", "fe80::1"),
    ],
)
def test_it_is_where_the_caller_came_to(
    connection: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's side of the connection, without its zone; loopback without a connection."""
    monkeypatch.setenv("SSH_CONNECTION", connection)

    assert own_address() == address


def test_it_is_none_that_the_world_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global address is refused, and named."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 8.8.8.8 22")

    with pytest.raises(Failure, match=r"8\.8\.8\.8"):
        own_address()

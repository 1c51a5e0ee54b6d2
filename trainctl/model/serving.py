"""How hosts would hand out weights to each other, as they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """Over ``tls``, where its likeliest address isn't private; ``why`` it reaches nobody on another host, if so.

    All the same it does whoever shares its ``loopback``, the name of a network; empty where nothing is handed out there.
    """

    tls: bool = False
    why: str = ""
    loopback: str = ""

    def kept_from(self, other: Serving) -> str:
        """Why that host gets nothing from this one; empty where it does."""
        return "" if self.loopback and self.loopback == other.loopback else self.why


TO_ALL = Serving()
"""What nobody has said anything else of."""


def cut_off(hosts: Mapping[str, Serving]) -> dict[str, str]:
    """Those of the hosts that can't hand anything to any of the others, each with the reason."""
    return {
        name: one.why
        for name, one in hosts.items()
        if all(one.kept_from(other) for them, other in hosts.items() if them != name) and one.why
    }

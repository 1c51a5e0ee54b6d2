"""Where a mirror is kept that is not on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.spi.provider import Node


@dataclass(frozen=True)
class Place:
    """On which host, of which provider, and in which directory (None: below its data)."""

    provider: str
    node: Node
    path: str | None = None

    @property
    def directory(self) -> str:
        """The directory, wherever it was said."""
        return self.path or f"{self.node.data}/mirror"

    @property
    def url(self) -> str:
        """As a manifest would name it."""
        return f"node://{self.node.cluster}{self.directory}"

    def is_on(self, node: Node) -> bool:
        """Whether that host and a node are one machine, as far as their settings tell."""
        mine = self.node
        return (mine.address, mine.details.get("port")) == (node.address, node.details.get("port"))

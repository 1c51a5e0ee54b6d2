"""Where a mirror is, as a state remembers it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MirrorSite:
    """A mirror's URL, and of a bucket the server that the manifest names, without its last ``/``; empty where it names none.

    What the *environment* names is not part of it, as people reach the same store by other names.
    """

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url

    def is_not(self, before: MirrorSite) -> bool:
        """Whether a mirror that was there has moved. A URL of a host without a directory is that of its usual one, which only the host tells."""
        if self.scheme == "node" and self.url.count("/") == 2:
            return not before.url.startswith(f"{self.url}/")
        return self != before

    @property
    def options(self) -> str:
        """How a command line names it."""
        endpoint = ("--endpoint-url", self.endpoint) if self.endpoint else ()
        return shlex.join(["--url", self.url, *endpoint])

    @property
    def outputs(self) -> dict[str, str]:
        """What is recorded of weights that are there."""
        return {"mirror": self.url, "mirror_endpoint": self.endpoint}

    @property
    def scheme(self) -> str:
        """What kind of place it is."""
        return self.url.partition("://")[0]

    def of(self, outputs: Mapping[str, Any]) -> MirrorSite:
        """Where recorded weights are, this being where they are to be. Where no server was recorded, as by earlier releases, it was the same."""
        there = MirrorSite(str(outputs.get("mirror") or self.url))
        same = self.endpoint if there.scheme == self.scheme else ""
        return MirrorSite(there.url, str(outputs.get("mirror_endpoint", same)))

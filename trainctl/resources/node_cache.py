"""Where a cluster's nodes cache weights and how much: from a cluster's attributes to what the node program is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.model.units import parse_size
from trainctl.spi.provider import Node


def cache_settings(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """``dir`` (None: under the node's ROOT) and ``size`` in bytes (None: what the disk has) of each node's cache."""
    tier = (cluster.get("cache") or {}).get("node") or {}
    size = tier.get("size")
    return {"dir": tier.get("dir"), "size": None if size is None else parse_size(size)}


def at(node: Node, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What every request about weights begins with."""
    return {"root": node.root, "cache": cache_settings(cluster)}

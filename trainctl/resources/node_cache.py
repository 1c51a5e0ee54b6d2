"""Where a cluster's nodes cache weights and how much: from a cluster's attributes to what the node program is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.base.protocol.verb import AtCache, Tier
from trainctl.base.units import parse_size
from trainctl.spi.provider import Node


def cache_settings(cluster: Mapping[str, Any]) -> Tier:
    """``dir`` (None: under the node's ROOT) and ``size`` in bytes (None: what the disk has) of each node's cache."""
    return _tier(cluster, "node")


def shared_settings(cluster: Mapping[str, Any]) -> Tier | None:
    """The same of the cache in a directory that all nodes see; None without one."""
    found = _tier(cluster, "cluster")
    return found if found["dir"] else None


def max_rate(cluster: Mapping[str, Any]) -> int | None:
    """How many bytes a second each node may take from the mirror; None without a limit."""
    rate = (cluster.get("cache") or {}).get("max_rate")
    return None if rate is None else parse_size(rate)


def at(node: Node, cluster: Mapping[str, Any]) -> AtCache:
    """What every request about weights begins with."""
    found = AtCache(root=node.root, cache=cache_settings(cluster))
    if shared := shared_settings(cluster):
        found["shared"] = shared
    if rate := max_rate(cluster):
        found["max_rate"] = rate
    return found


def _tier(cluster: Mapping[str, Any], name: str) -> Tier:
    tier = (cluster.get("cache") or {}).get(name) or {}
    size = tier.get("size")
    return {"dir": tier.get("dir"), "size": None if size is None else parse_size(size)}

"""Where a cluster's nodes cache weights and how much, as requests to the node program have it."""

from __future__ import annotations

from trainctl.base.protocol.verb import AtCache, Tier
from trainctl.base.units import parse_size
from trainctl.model.resource import CacheTier, ClusterSpec
from trainctl.spi.provider import Node


def cache_settings(cluster: ClusterSpec) -> Tier:
    """``dir`` (None: under the node's ROOT) and ``size`` in bytes (None: what the disk has) of each node's cache."""
    return _tier(cluster.cache.node)


def shared_settings(cluster: ClusterSpec) -> Tier | None:
    """The same of the cache in a directory that all nodes see; None without one."""
    found = _tier(cluster.cache.cluster)
    return found if found["dir"] else None


def max_rate(cluster: ClusterSpec) -> int | None:
    """How many bytes a second each node may take from the mirror; None without a limit."""
    rate = cluster.cache.max_rate
    return None if rate is None else parse_size(rate)


def at(node: Node, cluster: ClusterSpec) -> AtCache:
    """What every request about weights begins with."""
    found = AtCache(root=node.root, cache=cache_settings(cluster))
    if shared := shared_settings(cluster):
        found["shared"] = shared
    if rate := max_rate(cluster):
        found["max_rate"] = rate
    return found


def _tier(cache: CacheTier | None) -> Tier:
    cache = cache or CacheTier()
    return {"dir": cache.dir, "size": None if cache.size is None else parse_size(cache.size)}

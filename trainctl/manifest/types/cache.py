"""Training caches: policy for the one read-write cache of a project on a cluster."""

from __future__ import annotations

from trainctl.manifest.types.base import Lifecycle, Name, Section, Size, Text


class Cache(Section):
    """The training cache of a project on a cluster."""

    cluster: Name | None = None
    """Which cluster; may be left out where there is only one."""
    project: Name | None = None
    """Which project; may be left out where there is only one."""
    size: Size | None = None
    """How much it is meant to hold, for example 1TB."""
    dir: Text | None = None
    """An absolute directory on the nodes, in place of trainctl's own."""
    lifecycle: Lifecycle = Lifecycle()
    """How it answers to changes."""

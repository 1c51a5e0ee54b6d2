"""All methods of the node program, by name."""

from __future__ import annotations

from typing import Any, Dict

from trainctl.base.protocol import (
    batch,
    caches,
    checkpoints,
    code,
    host,
    idle_shutdown,
    mirrors,
    preflight,
    runs,
    weights,
)
from trainctl.base.protocol.method import Method

METHOD_GROUPS = (
    host,
    preflight,
    code,
    weights,
    runs,
    batch,
    checkpoints,
    caches,
    mirrors,
    idle_shutdown,
)

METHODS: Dict[str, Method[Any, Any]] = {
    method.name: method
    for group in METHOD_GROUPS
    for method in vars(group).values()
    if isinstance(method, Method)
}

"""The ``local`` provider: nodes are directories and processes of this machine.

``provider`` has both classes, ``LocalProvider`` and ``LocalTransport``.
"""

from trainctl_local.provider import LocalProvider, LocalTransport

__all__ = ["LocalProvider", "LocalTransport"]

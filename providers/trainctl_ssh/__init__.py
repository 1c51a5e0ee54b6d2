"""The ``ssh`` provider: nodes are hosts that one logs in to."""

from trainctl_ssh.provider import SshProvider

__all__ = ["SshProvider"]

"""The ``ssh`` provider: nodes are existing hosts.

Begin with ``provider.SshProvider``. ``hosts`` reads the manifest; ``openssh_connection`` connects with the ssh
program, ``paramiko_connection`` without one, and ``shell`` is the line protocol of both. ``connection`` handles first
contact and failures. For providers that create machines: ``machines`` reaches them, with ``keys`` and ``user_data``.
"""

from trainctl_ssh.provider import SshProvider

__all__ = ["SshProvider"]

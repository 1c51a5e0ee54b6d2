"""Code shared by the client, the node program and mirrors on hosts.

Python 3.8 and the standard library only; it imports nothing of trainctl but ``trainctl.errors``.

``filesystem``: atomic, durable files. ``system``: processes and system calls. ``network``: listeners, TLS and
the object server. ``http``: the HTTP client. ``protocol``: calls of the node program.
``checkpoints``: checkpoint stores. ``listing``: files of a source by path and by sha256.
``objects``: the interface of object stores. ``lease``, ``retry``: shared by everything that waits.
"""

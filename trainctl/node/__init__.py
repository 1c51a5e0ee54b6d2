"""Node program: runs on nodes with the standard library of Python 3.8 or later.

Start with ``__main__``: it maps each RPC method to a function (docs/reference/protocol.md).

- ``cache``: weights and code on the node's disk; ``transfer`` fetches them
- ``environment``, ``containers``: prepare and start the job's process
- ``supervision``: one supervisor process per run; ``runs`` holds its record, logs and mounts
- ``scheduling``: the queue for GPUs; ``rendezvous`` coordinates the nodes of a gang
- ``checkpoints``, ``training_caches``, ``metrics``, ``mirror``: methods for each of these
- ``system``: paths, blobs, GPUs, facts about the host

It imports from trainctl only ``base``, ``store`` and ``errors``, and ``sources`` to read URLs; see DESIGN.md.
"""

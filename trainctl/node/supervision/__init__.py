"""Supervise runs, and RPC methods that use all other packages.

- ``start_methods``: start a run; ``supervisor`` is the process that then runs it
- ``run_methods``: status, stop, remove; imports nothing that only a supervisor needs
- ``inspection``: report GPUs, disks, caches and mount support
- ``idle_shutdown``: use of the machine; start and renew ``idle_watcher``, which ends it
- ``attempt_limits``: end attempts when their time is over or a disk is full
- ``garbage_collection``: remove what a lineage leaves behind
"""

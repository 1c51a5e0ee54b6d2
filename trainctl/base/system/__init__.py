"""Processes and what the kernel offers them.

``processes`` identifies a process across pid reuse and boots, ``descriptors`` starts children without files that aren't
theirs, ``syscalls`` has the calls that Python 3.8 lacks, and ``bytecode`` keeps compiled node programs on a node.
"""

"""Processes, system calls, compiled node programs and the call server.

``processes`` identifies processes across pid reuse and boots; ``syscalls`` has the calls that Python 3.8 lacks, and
forks children that inherit no other files; ``bytecode`` caches compiled node programs; ``call_server`` serves many calls
from one process.
"""

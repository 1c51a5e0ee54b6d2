"""Processes, system calls and compiled node programs.

``processes`` identifies processes across pid reuse and boots; ``syscalls`` has the calls that Python 3.8 lacks, and
forks children that inherit no other files; ``bytecode`` caches compiled node programs.
"""

"""State and processes of one run.

- ``record``: the run's directory, its specification and status
- ``attempt``: the warden and the job's shell, from fork to exit
- ``mount``: private mount namespaces
- ``log_index``, ``log_lines``: times of log bytes, reading and following logs
"""

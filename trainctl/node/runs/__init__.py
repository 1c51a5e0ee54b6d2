"""State and processes of one run.

- ``record``: the run's directory, its specification (also what it says of the job) and status
- ``attempt``: the warden and the job's shell, from fork to exit
- ``mount``: private mount namespaces
- ``logs``: times of log bytes, reading and following logs
"""

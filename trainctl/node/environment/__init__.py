"""Environment of a job on the host or in a container.

- ``workspace``: directories, code, weights, mounts and variables of a run
- ``container``: the command line that runs the job in a container
- ``shell``: shell programs of jobs, login shells, checks of the host
- ``requirements``: virtual environments built from a requirements file
"""

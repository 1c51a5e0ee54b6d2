"""Environment of a job on the host or in a container.

- ``workspace``: directories, code, weights, mounts, variables and shell programs of a run
- ``container``: the command line that runs the job in a container
- ``requirements``: virtual environments built from a requirements file
- ``entry``: enter a run's environment
"""

"""Containers of jobs with podman, docker or apptainer.

- ``engines``: select an engine, run its program; command lines, and the program of process 1
- ``images``: pull images (the ``pull_image`` method), and remove those without users
- ``cleanup``: processes of a container, removal of what it leaves behind
"""

"""Containers of jobs with podman, docker or apptainer.

- ``engines``: select an engine, run its program
- ``images``: pull images (the ``pull_image`` method); ``image_store`` tracks their users
- ``command_line``: command lines of the engines and the program of process 1
- ``cleanup``: processes of a container, removal of what it leaves behind
"""

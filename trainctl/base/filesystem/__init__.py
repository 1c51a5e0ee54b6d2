"""Durable files, safe paths, and directories that users share.

Begin with ``files``: whatever trainctl writes to a disk goes through its atomic writes. ``group_sharing`` gives what is
made in a shared directory to its group, and ``safe_path`` decides which names of upstream may become paths.
"""

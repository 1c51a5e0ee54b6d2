"""Durable files, safe paths, and directories that users share.

Begin with ``files``: all files are written through its atomic writes. ``group_sharing`` sets the modes of files in
shared directories; ``safe_path`` checks which upstream names may become paths.
"""

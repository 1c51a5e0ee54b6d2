"""Durable files and safe paths.

Begin with ``files``: all files are written through its atomic writes, with the right modes in shared directories.
``safe_path`` checks which upstream names may become paths.
"""

"""Checkpoints of runs: detect, upload, retain and load them.

- ``monitor``: which files in a job's directory are settled, which checkpoints complete
- ``uploader``: one round of uploads and retention; ``upload_journal`` lets it resume
- ``uploader_process``: the process that runs rounds next to a job and after it
- ``loader``: place checkpoints for a run that starts from them
- ``metadata``: type, step and tensors of a checkpoint, whether it is finished, and its pointer files
- ``methods``: RPC methods
"""

"""Inputs of a job's run: source code, environment, secrets, checkpoints.

``code`` scans and packs the source code, ``environment`` computes variables and paths, ``checkpoints`` describes
stores. ``secrets`` has values of declared secrets: ``secret_sources`` reads them, ``destinations`` lists the hosts
that receive them. ``bucket_credentials`` and ``registry`` turn secrets into logins.
"""

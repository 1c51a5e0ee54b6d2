"""Sections of a manifest, and the desired resources with defaults filled in and references resolved.

Begin with ``job_spec.JobSpec``, a job and its image, compute, weights and checkpoints. ``resource`` has the other
resources: weights, clusters and caches. ``desired`` makes these values from the sections of ``document.Manifest``,
``plan`` compares them with the state, and the state stores them with each run.

Docstrings of classes and fields become descriptions in the JSON Schema
(``schemas/trainctl_schemas/v1/manifest.json``) and the output of ``trainctl schema``.
"""

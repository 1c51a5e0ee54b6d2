"""Desired resources, with defaults filled in and references resolved.

Begin with ``job_spec.JobSpec``, a job and its image, compute, weights and checkpoints. ``resource`` has the other
resources: weights, clusters and caches. ``desired`` makes these values from the manifest, ``plan`` compares them with
the state, and the state stores them with each run.
"""

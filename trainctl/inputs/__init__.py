"""Inputs of a job's run: source code, environment, images and checkpoints.

``code`` scans and packs the source code, ``environment`` computes variables and paths, ``checkpoints`` describes
stores. ``image_digests`` asks registries, ``serving`` says what starts a server of a checkpoint.
"""

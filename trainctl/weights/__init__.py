"""Resolution of weights: sources to files at a revision, and the mirror.

Begin with ``resolution.resolve``: it queries a source, applies ``patterns`` and follows ``trainctl.lock`` (``lock``). If
upstream differs from the lock or is unreachable, ``lock_fallback`` uses the mirror. ``mirrors`` describes the mirror, and
reads sources for it.
"""

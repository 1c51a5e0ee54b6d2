"""Resolution of weights: sources to files at a revision, and the mirror.

Begin with ``resolution.resolve``: it queries a source, applies ``patterns`` and follows ``trainctl.lock`` (``lock``), whose
version comes from the mirror if upstream differs or is unreachable. ``mirrors`` describes the mirror, and reads sources for
it; ``contents`` compares two revisions.
"""

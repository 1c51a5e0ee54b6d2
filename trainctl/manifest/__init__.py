"""Manifest files: parsing and validation.

Begin with ``read.read``, which parses all files (``text``) to one ``tree`` of values with positions, and
``check.check``, which validates it against the sections of ``model.specs`` and words the problems. ``excerpt`` shows
their lines without secrets. ``fields`` lists all keys for ``schema`` and ``trust_file`` reads the user's trust file.
"""

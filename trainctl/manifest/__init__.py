"""Manifest files: parsing, validation, and the types of all sections.

Begin with ``read.read``, which parses all files (``yaml_text``, ``toml_text``) to one ``tree`` of values with
positions, and ``check.check``, which validates it against ``types``. ``messages`` words the problems, ``excerpt``
shows their lines without secrets, ``credentials`` detects credentials. ``fields`` lists all keys for ``schema`` and
``trust_file`` reads the user's trust file.
"""

"""Types of all sections of a manifest, as pydantic models.

Begin with ``document.Manifest``. Docstrings of classes and fields become descriptions in the JSON Schema
(``schemas/trainctl_schemas/v1/manifest.json``) and the output of ``trainctl schema``.
"""

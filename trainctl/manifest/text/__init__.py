"""Texts of manifests: YAML and TOML, read and written."""

"""The sources there are, by scheme; each is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from trainctl.errors import SourceError
from trainctl.plugin_api.sources import WeightSource

_SOURCES = {
    "azure": ("bucket", "BucketSource"),
    "file": ("file", "FileSource"),
    "gs": ("bucket", "BucketSource"),
    "hf": ("hf", "HubSource"),
    "https": ("https", "HttpsSource"),
    "r2": ("bucket", "BucketSource"),
    "s3": ("bucket", "BucketSource"),
}


def source_for(scheme: str) -> WeightSource:
    """The source of a scheme of ``model.source_uri``. SourceError for one that can't be mirrored."""
    if scheme not in _SOURCES:
        known = ", ".join(f"{name}:" for name in _SOURCES)
        raise SourceError(
            f"{scheme}:// sources are not supported by this version",
            f"Supported: {known}. Copy the files to a directory and use file:///PATH.",
            code="unsupported",
        )
    module, name = _SOURCES[scheme]
    make = getattr(import_module(f"trainctl.sources.{module}"), name)
    source: WeightSource = make(scheme) if module == "bucket" else make()
    return source

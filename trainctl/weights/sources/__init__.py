"""The sources there are, by scheme; each is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from trainctl.errors import SourceError
from trainctl.spi.sources import WeightSource

_SOURCES = {
    "azure": ("trainctl.weights.sources.azure", "AzureSource"),
    "file": ("trainctl.weights.sources.file", "FileSource"),
    "https": ("trainctl.weights.sources.https", "HttpsSource"),
    "gs": ("trainctl.weights.sources.gs", "GoogleSource"),
    "hf": ("trainctl.weights.sources.hf", "HubSource"),
    "r2": ("trainctl.weights.sources.s3", "S3Source"),
    "s3": ("trainctl.weights.sources.s3", "S3Source"),
}


def source_for(scheme: str) -> WeightSource:
    """The source of a scheme of ``model.source_uri``. SourceError for one that can't be mirrored."""
    if scheme not in _SOURCES:
        known = ", ".join(f"{name}:" for name in _SOURCES)
        raise SourceError(
            f"sources with {scheme}:// can't be mirrored by this version",
            f"It can mirror {known}. Copy the files to a directory and write file:///PATH.",
            code="unsupported",
        )
    module, name = _SOURCES[scheme]
    source: WeightSource = getattr(import_module(module), name)()
    return source

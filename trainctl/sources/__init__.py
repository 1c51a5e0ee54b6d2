"""Sources of weights by scheme, loaded on demand by ``source_for``.

``hf``, ``https``, ``file`` and ``bucket`` each implement ``plugin_api.sources.WeightSource``. ``client`` sends their HTTP
requests, and reads ranges and validators of responses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainctl.errors import SourceError

if TYPE_CHECKING:
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
    """Return the source of a scheme; SourceError if it is unsupported."""
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

"""Where every source is copied to once, by content."""

from __future__ import annotations

from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.report import MirroredSource

__all__ = ["DirectoryMirror", "MirroredSource", "Reference"]

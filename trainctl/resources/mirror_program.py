"""The mirror program as one file: the mirror's own modules and what they need, and no more, as it goes to a host."""

from __future__ import annotations

from trainctl.remote.archive import Archive, program_archive

_MAIN = "trainctl.weights.mirror.program"
_MODULES = {
    "trainctl": ("errors",),
    "trainctl.base": (),
    "trainctl.model": ("serving", "source_uri"),
    "trainctl.store": ("files", "keys"),
    "trainctl.node.content": ("digests", "listing", "pack", "pack_index", "packs", "parts", "runs"),
    "trainctl.node.system": ("layout", "numbers"),
    "trainctl.node.transfer": ("blob_requests", "caller", "evenness", "proof", "server", "shelf"),
    "trainctl.spi": ("sources",),
    "trainctl.weights": ("patterns",),
    "trainctl.weights.mirror": (),
    "trainctl.sources": ("bodies", "client", "https", "statuses", "validators"),
}  # fmt: skip


def mirror_archive() -> Archive:
    """What runs where a mirror is kept on a host."""
    names = [f"{package}:{name}" for package, found in _MODULES.items() for name in found or ("",)]
    return program_archive(_MAIN, tuple(names))

"""The mirror program as one file: the mirror's own modules and what they need, and no more, as it goes to a host."""

from __future__ import annotations

from trainctl.remote.archive import Archive, program_archive

_MAIN = "trainctl.weights.mirror.program"
_MODULES = {
    "trainctl": ("errors",),
    "trainctl.model": ("files", "flow", "hub_paths", "json", "serving", "source_uri", "units"),
    "trainctl.node.calls": ("asking", "bytecode", "call_server", "frames", "guard", "programs", "protocol", "rows", "tls"),
    "trainctl.node.content": ("digests", "json_stream", "listing", "pack", "pack_index", "packed", "packs", "parts", "runs"),
    "trainctl.node.system": ("addresses", "below", "descriptors", "failure", "files", "layout", "listening", "numbers", "ports", "processes", "sharing", "syscalls", "temporary"),
    "trainctl.node.transfer": ("blob_requests", "caller", "evenness", "proof", "server", "shelf"),
    "trainctl.objects": ("certificates",),
    "trainctl.spi": ("sources",),
    "trainctl.weights": ("exclusive", "patterns", "retry", "safe_path"),
    "trainctl.weights.mirror": (),
    "trainctl.weights.sources": ("bodies", "connecting", "gates", "http", "https", "proxies", "statuses", "validators", "wire"),
}  # fmt: skip


def mirror_archive() -> Archive:
    """What runs where a mirror is kept on a host."""
    names = [f"{package}:{name}" for package, found in _MODULES.items() for name in found or ("",)]
    return program_archive(_MAIN, tuple(names))

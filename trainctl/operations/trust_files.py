"""Which trust files count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainctl.model.trust import Trust
from trainctl.operations.places import config_home


def trust_of(environ: Mapping[str, str], directory: Path, given: Path | None) -> Trust:
    """What the user's trust file allows, or the ``given`` one in its place; without any, nothing is allowed.

    The policies of the user's own hold in any case. TrustError where a file can't be relied upon.
    """
    usual = config_home(environ) / "trust.toml"
    chosen = _read(given) if given is not None else None
    if chosen is not None and given is not None and given.resolve() == usual.resolve():
        return chosen
    own = _read(usual, directory) if os.path.lexists(usual) else Trust(str(usual))
    if chosen is None:
        return own
    return replace(chosen, policies=(*own.policies, *chosen.policies))


def _read(path: Path, outside: Path | None = None) -> Trust:
    from trainctl.manifest.trust_file import read_trust  # a parser: only who has a file pays for it

    return read_trust(path, outside=outside)

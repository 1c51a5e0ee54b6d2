"""Load the trust and policies of the user."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from trainctl.base.lazy_dataclass import replace
from trainctl.model.trust import PlanPolicy, Trust
from trainctl.operations.directories import home


def load_trust(
    environ: Mapping[str, str], directory: Path, trust_file: Path | None, policy_file: Path | None
) -> Trust:
    """Read ``trust_file`` or the user's trust file; without one, allow nothing.

    The policies of the user's file, of ``TRAINCTL_POLICY`` and of ``policy_file`` always apply. TrustError for an
    unsafe or invalid file, or for policies in the checkout of the manifest.
    """
    default_file = home(environ, "XDG_CONFIG_HOME", ".config") / "trust.toml"
    chosen = _read_trust(trust_file) if trust_file is not None else None
    if chosen is not None and trust_file and trust_file.resolve() == default_file.resolve():
        trust = chosen
    else:
        has_own = os.path.lexists(default_file)
        own = _read_trust(default_file, directory) if has_own else Trust(str(default_file))
        trust = replace(chosen, policies=(*own.policies, *chosen.policies)) if chosen else own
    top = directory.resolve()
    top = next((path for path in (top, *top.parents) if os.path.lexists(path / ".git")), top)
    for file in (environ.get("TRAINCTL_POLICY"), policy_file):
        if file:
            more = load_policies(Path(file), outside=top)
            trust = replace(trust, policies=(*trust.policies, *more))
    return trust


def load_policies(path: Path, outside: Path | None = None) -> tuple[PlanPolicy, ...]:
    """Read a file of policies and waivers; TrustError if it is unsafe or inside ``outside``."""
    return _read_trust(path, outside, ("policy", "waiver")).policies


def _read_trust(path: Path, outside: Path | None = None, tables: Collection[str] = ()) -> Trust:
    from trainctl.manifest.trust_file import read_trust  # slow to import

    return read_trust(path, outside=outside, tables=tables)

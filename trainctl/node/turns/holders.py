"""Who has the GPUs that a run waits for, in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set

from trainctl.base.failure import Failure
from trainctl.base.files import names_in
from trainctl.base.processes import alive
from trainctl.node.runs.record import ENDED, Run
from trainctl.node.system.layout import Layout
from trainctl.node.turns.claims import Holder, holder
from trainctl.node.turns.gpu_tools import Gpu

_ELSEWHERE = "another directory's run"
_NOBODY = 65534
"""Whoever isn't mapped into this user namespace."""

_NAMED = 2
"""How many are named: a line of ``status`` is short."""


def holders(layout: Layout, wanted: Iterable[str]) -> Dict[str, Mapping[str, Any]]:
    """By id of a GPU the specification of the run under this ROOT that has claimed it. Only records are read, and nothing is mended."""
    left: Set[str] = set(wanted)
    found: Dict[str, Mapping[str, Any]] = {}
    for name in names_in(layout.runs) if left else ():
        if name.startswith("."):
            continue
        run = Run(layout, name)
        has = left & _held_by(run)
        if has:
            found.update(dict.fromkeys(has, run.spec or {}))
    return found


def _held_by(run: Run) -> Set[str]:
    record = run.record
    has = set(record.get("gpus") or ())
    return has if has and record.get("status") not in ENDED and alive(run.supervisor) else set()


class Taken(NamedTuple):
    """Who holds a GPU that no run under this ROOT has, in words, and whose run it is, where that may be read."""

    words: str
    project: Optional[str] = None


def elsewhere(gpu: Gpu, mine: Mapping[str, Any]) -> Taken:
    """The user's own run under another ROOT, else whose process it is.

    Nothing is read of another user's: what it says is the kernel's word.
    """
    who = holder(gpu.claim)
    if who is None:
        return Taken(_ELSEWHERE)
    run = _run_of(who.pid) if who.uid == os.geteuid() else None
    if run is not None and gpu.id in _held_by(run):
        spec = run.spec or {}
        return Taken(run_words(spec, mine), spec.get("project"))
    return Taken(f"{_ELSEWHERE}{_words(who)}")


def _run_of(supervisor: int) -> Optional[Run]:
    """By where that writes its errors; perhaps another process has its number by now."""
    try:
        errors = Path(os.readlink(f"/proc/{supervisor}/fd/2"))
        directory = errors.parent
        run = Run(Layout(str(directory.parent.parent)), directory.name)
    except (OSError, Failure):
        return None
    return run if run.directory == directory else None


def _words(who: Holder) -> str:
    pid = f"pid {who.pid}" if who.pid else ""
    said = ", ".join(filter(None, [_user(who.uid), pid]))
    return f" ({said})" if said else ""


def _user(uid: int) -> str:
    """The host's own users by name. No directory service is asked, for which a run might wait for long."""
    if uid == _NOBODY:
        return ""
    try:
        users = Path("/etc/passwd").read_text(errors="replace").splitlines()
    except OSError:
        users = []
    names = (one.split(":") for one in users)
    return next((one[0] for one in names if one[2:3] == [str(uid)]), f"user {uid}")


def run_words(holder: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """``job.sft run 3``, for a run of another state or project with ``of PROJECT``."""
    words = f"{holder.get('address')} run {holder.get('number')}"
    same = all(holder.get(name) == mine.get(name) for name in ("lineage", "project"))
    return words if same else f"{words} of {holder.get('project')}"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and 3 more``: each once."""
    each: List[str] = list(dict.fromkeys(names))
    more = len(each) - _NAMED
    if more > 0:
        return f"{', '.join(each[:_NAMED])} and {more} more"
    return " and ".join(each)

"""``~/.ssh/config`` for paramiko, which reads it otherwise than OpenSSH does; see ssh_config(5)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import paramiko

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeUnreachable
from trainctl_ssh.hosts import SshLogin

_LINE = compile_lazily(r"(\w+)(?:\s*=\s*|\s+)(.*)")
_WORD = compile_lazily(r"""\s*(?:#.*|((?:"[^"]*"|'[^']*'|[^\s"'])+))""")
_SINGLE = {"hostname", "user", "port", "identityfile", "canonicalizehostname"}
_TOKENS = compile_lazily("%[^hprduLlC]")
_REFUSED = "refused"
"""Keyword of a line that can't be decided here, in the section where it stands."""


def read_ssh_config(path: Path, login: SshLogin) -> dict[str, Any]:
    """Return the settings of a login, whose own values come first.

    NodeUnreachable names a line that it can't read; a host behind a jump host or proxy needs the ssh program, too.
    """
    own = {"User": login.user, "Port": login.port}
    lines = [f"{keyword} {value}" for keyword, value in own.items() if value]
    try:
        lines += _lines(path) if path.exists() else ()
        config = paramiko.SSHConfig.from_file(StringIO("\n".join(lines)))
        settings: dict[str, Any] = config.lookup(login.address)
    except (OSError, paramiko.ConfigParseError) as error:
        settings = {_REFUSED: f"{path}: {error}"}
    if login.jump or _has_proxy(settings):
        settings[_REFUSED] = f"{login.address} is behind a jump host or a proxy"
    if _REFUSED in settings:
        raise NodeUnreachable(
            settings[_REFUSED],
            "Install the ssh program of OpenSSH, or change that setting.",
            code="ssh-config",
        )
    return settings


def _has_proxy(settings: Mapping[str, Any]) -> bool:
    """Return whether the first proxy that is set is one."""
    for keyword, value in settings.items():
        if keyword == "proxycommand" or (keyword == "proxyjump" and value.lower() != "none"):
            return value is not None  # paramiko has None for "none"
    return False


def _lines(path: Path) -> Iterator[str]:
    """Yield the settings of a file, without comments."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        keyword = match[1].lower()
        words = [re.sub("[\"']", "", word) for word in _WORD.findall(match[2]) if word]
        if keyword == "match":
            yield "Match all"  # whether it matches is unknown
        is_unsupported = (
            (keyword in _SINGLE and len(words) != 1)
            or (keyword in ("include", "match", "canonicalizehostname") and words != ["no"])
            or (keyword == "port" and not words[0].isdecimal())
            or (keyword in _SINGLE and any(map(_TOKENS.search, words)))
        )
        if is_unsupported:
            yield f"{_REFUSED} {path}:{number}: {match[0]!r} is not supported"
        else:
            yield f"{keyword} {shlex.join(words) if keyword == 'host' else ' '.join(words)}"

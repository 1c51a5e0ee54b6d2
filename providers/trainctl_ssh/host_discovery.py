"""Where things are on a host: its home directory and its Python, found out in one call; and whether a file is there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainctl.errors import NodeError
from trainctl.plugin_api.provider import ResourceStatus, Transport
from trainctl.remote.responses import printable_tail
from trainctl_ssh.hosts import SshHost

_CANDIDATES = (
    "python3",
    *(f"python3.{minor}" for minor in range(8, 15)),
    "~/miniconda3/bin/python",
    "~/miniforge3/bin/python",
    "/opt/conda/bin/python",
)
_SECONDS = 60.0
_DISCOVERY_SCRIPT = r"""
printf "home\t%s\n" "$HOME"
for one do
  case $one in "~/"*) one=$HOME/${one#"~/"};; esac
  said=$("$one" -I -c 'import sys; print("%d.%d.%d\t%s" % (sys.version_info[:3] + (sys.executable,)))' 2>/dev/null) || continue
  printf "python\t%s\t%s\n" "$said" "$one"
  case $said in 3.[89].*|3.[1-9][0-9].*) exit 0;; esac
done
exit 0
"""


_STAT = """\
said=$(LC_ALL=C ls -d -- "$1" 2>&1 >/dev/null) && echo present && exit
case $said in *": No such file or directory" | *": Not a directory") echo missing;; *) echo forbidden;; esac
"""
"""Only a missing name is gone. The words are those of the C library for ENOENT and ENOTDIR, which ``ls`` says last."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Absolute paths on one host: see Node."""

    root: str
    data: str
    python: str


def find_host_paths(transport: Transport, host: SshHost, who: str) -> HostPaths:
    """Ask the host. NodeError if it has no Python that will do: it names those that were found."""
    candidates = (host.python,) if host.python else _CANDIDATES
    output = transport.run(["sh", "-c", _DISCOVERY_SCRIPT, "sh", *candidates], timeout=_SECONDS)
    home, found = "", []
    for line in output.stdout.decode(errors="surrogateescape").splitlines():
        kind, _, rest = line.partition("\t")
        if kind == "home":
            home = rest
        elif kind == "python":
            found.append(rest.split("\t"))
    if not home.startswith("/"):
        raise NodeError(
            f"{who} has no home directory",
            printable_tail(output.stderr) or "Set HOME for this user on the host.",
        )
    good = [parts for parts in found if len(parts) == 3 and _is_supported_python(parts[0])]
    if not good:
        raise _no_python_error(who, host, found)
    below = host.dir.rstrip("/") or "~/.cache/trainctl"
    root = home.rstrip("/") + below[1:] if below.startswith("~/") else below
    data = f"{root}/data" if host.dir else f"{home.rstrip('/')}/.local/share/trainctl"
    return HostPaths(root, data, good[0][1])


def find_presence(transport: Transport, path: str, who: str) -> ResourceStatus:
    """Whether a file is there, asked without starting Python. NodeError if the host answers with something else."""
    output = transport.run(["sh", "-c", _STAT, "sh", path], timeout=_SECONDS)
    try:
        return ResourceStatus(output.stdout.decode(errors="replace").strip())
    except ValueError:
        raise NodeError(f"{who} cannot inspect its files", printable_tail(output.stderr)) from None


def _is_supported_python(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= (3, 8)


def _no_python_error(who: str, host: SshHost, found: list[list[str]]) -> NodeError:
    had = ", ".join(f"{parts[-1]} is {parts[0]}" for parts in found if len(parts) == 3)
    if host.python:
        return NodeError(
            f"{who}: {host.python} is not Python 3.8 or newer",
            f"{had or 'It does not run'}. Correct python of the host.",
            code="unsupported-node-python",
        )
    return NodeError(
        f"{who} has no Python 3.8 or newer",
        f"{had or 'None was found'}. Tried {', '.join(_CANDIDATES)}. Set python of the host to its path.",
        code="unsupported-node-python",
    )

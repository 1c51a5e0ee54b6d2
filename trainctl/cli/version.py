"""What ``version`` says."""

from __future__ import annotations

import platform

from trainctl import __version__


def as_text() -> str:
    """One line: the program and its version."""
    return f"trainctl {__version__}"


def as_json() -> dict[str, str]:
    """The same for programs, with what a bug report needs."""
    return {
        "trainctl_version": __version__,
        "python_version": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}".lower(),
    }

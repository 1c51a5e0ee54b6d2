"""What comes to a host over SSH, written down, and looking for a text in what lies there."""

from __future__ import annotations

from pathlib import Path


def ssh_recorder(place: Path) -> Path:
    """A program that runs what was asked for over SSH, and writes down in ``heard`` all that came: words, variables and standard input."""
    program, log = place / "recorder", place / "heard"
    program.write_text(
        "#!/bin/sh\n"
        f"{{ printf '%s\\n' \"$SSH_ORIGINAL_COMMAND\"; env; }} >> {log}\n"
        f'tee -a {log} 2>/dev/null | sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    program.chmod(0o755)
    return program


def files_containing(place: Path, text: str) -> list[Path]:
    """The files below a place that hold a text."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if text.encode() in path.read_bytes()]

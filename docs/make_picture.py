"""Record commands on the quickstart's project: ``python docs/make_picture.py``.

The terminal becomes ``docs/assets/quickstart.svg``; the plan's HTML page ``docs/assets/plan.png``, by
headless Chromium (Debian: chromium), without which it stays as it is.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

_ROOT = Path(__file__).resolve().parents[1]
_QUICKSTART = _ROOT / "examples" / "quickstart"
_PICTURE = _ROOT / "docs" / "assets" / "quickstart.svg"
_PAGE = _ROOT / "docs" / "assets" / "plan.png"
_PAGE_SIZE = "900,900"
_COLUMNS, _ROWS = 88, 60
_PREPARE = ("apply", "--auto-approve", "--wait")
_SHOWN = (
    ("plan", "--var", "lr=2.0", "--out", "plan.bin"),
    ("apply", "plan.bin", "--wait"),
    ("status",),
    ("logs", "job.train", "--tail", "3"),
)
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> None:
    """Run the commands in a temporary directory and write the picture."""
    with tempfile.TemporaryDirectory() as top:
        project = Path(top, "project")
        project.mkdir()
        for name in ("trainctl.yaml", "src", "weights"):
            copy = shutil.copytree if (_QUICKSTART / name).is_dir() else shutil.copy
            copy(_QUICKSTART / name, project / name)
        homes = {f"XDG_{name}_HOME": str(Path(top, name)) for name in ("DATA", "CACHE", "CONFIG")}
        environment = {**os.environ, **homes, "TERM": "xterm-256color"}
        environment.pop("CI", None)
        try:
            _run(_PREPARE, project, environment)
            screen = "\n".join(
                f"\x1b[1m$ trainctl {' '.join(words)}\x1b[0m\n{_run(words, project, environment)}"
                for words in _SHOWN
            )
            page = _run(("plan", "--var", "lr=3.0", "--format", "html"), project, environment)
        finally:
            _run(("destroy", "--auto-approve", "--stop-running"), project, environment)
    _PICTURE.parent.mkdir(exist_ok=True)
    _PICTURE.write_text(_svg(screen), encoding="utf-8")
    if browser := shutil.which("chromium"):
        _take_screenshot(browser, page)


def _take_screenshot(browser: str, page: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        file = Path(top, "plan.html")
        file.write_text(page, encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
        size, target = f"--window-size={_PAGE_SIZE}", f"--screenshot={_PAGE}"
        command = [browser, *flags, f"--user-data-dir={top}/profile", size, target, file.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def _run(words: tuple[str, ...], directory: Path, environment: Mapping[str, str]) -> str:
    """The output of a command on a terminal."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    command = [str(Path(sys.executable).with_name("trainctl")), *words]
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    output = b""
    try:
        while data := os.read(controller, 65536):
            output += data
    except OSError:  # the terminal's last writer has ended
        pass
    os.close(controller)
    if process.wait():
        raise SystemExit(f"{' '.join(words)} failed:\n{output.decode()}")
    return _without_progress(output.decode().replace("\r\n", "\n"))


def _without_progress(text: str) -> str:
    """The lines that stay: progress is erased by moving the cursor up and clearing below it."""
    first, *rest = re.split(r"\x1b\[(\d+)A\r\x1b\[J", re.sub(r"\x1b\[\?25[hl]", "", text))
    lines = first.split("\n")
    for count, after in zip(rest[::2], rest[1::2], strict=True):
        added = after.split("\n")
        del lines[-int(count) - 1 :]
        lines += added
    return "\n".join(line for line in lines if not line.endswith("…"))


def _svg(screen: str) -> str:
    """The screen as a picture that loads nothing."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen))
    picture = console.export_svg(title="trainctl", unique_id="quickstart")
    picture = _FONT_FACE.sub("", picture).replace("Fira Code, monospace", _FONT)
    return picture.replace("font-family: arial", "font-family: sans-serif")


if __name__ == "__main__":
    main()

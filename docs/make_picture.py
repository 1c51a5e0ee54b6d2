"""Make the pictures of the documentation from real runs: ``python docs/make_picture.py``.

Commands on the quickstart's project become ``docs/assets/quickstart.svg``. Headless Chromium (Debian: chromium) takes its
plan, ``docs/assets/plan.png``, and the page of the example ``sweep``, ``docs/assets/sweep.png``.
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
_ASSETS = _ROOT / "docs" / "assets"
_PLAN_SIZE = (900, 1280)
_SWEEP_SIZE = (1000, 920)
_COLUMNS, _ROWS = 88, 60
_PREPARE = ("apply", "--auto-approve", "--wait")
_DESTROY = ("destroy", "--auto-approve", "--stop-running")
_SHOWN = (
    ("plan", "--var", "lr=2.0", "--out", "plan.bin"),
    ("apply", "plan.bin", "--wait"),
    ("status",),
    ("logs", "job.train", "--tail", "3"),
)
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> None:
    """Run the commands in temporary directories and write the pictures."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as top:
        directory = Path(top)
        _take_quickstart(directory, browser)
        _take_sweep(directory, browser)


def _take_quickstart(top: Path, browser: str) -> None:
    project, environment = _copy_example("quickstart", top)
    try:
        _run(_PREPARE, project, environment)
        screen = "\n".join(
            f"\x1b[1m$ trainctl {' '.join(words)}\x1b[0m\n{_run(words, project, environment)}"
            for words in _SHOWN
        )
        page = _run(("plan", "--var", "lr=3.0", "--format", "html"), project, environment)
    finally:
        _run(_DESTROY, project, environment)
    (_ASSETS / "quickstart.svg").write_text(_svg(screen), encoding="utf-8")
    file = top / "plan.html"
    file.write_text(page, encoding="utf-8")
    _take_screenshot(browser, file, "plan.png", _PLAN_SIZE)


def _take_sweep(top: Path, browser: str) -> None:
    project, environment = _copy_example("sweep", top)
    site = top / "site"
    try:
        _run(_PREPARE, project, environment)
        _run(("ui", "--out", str(site)), project, environment)
    finally:
        _run(_DESTROY, project, environment)
    _take_screenshot(browser, site / "jobs" / "fit.html", "sweep.png", _SWEEP_SIZE)


def _copy_example(name: str, top: Path) -> tuple[Path, dict[str, str]]:
    """A project with homes of its own, and its environment."""
    project = top / name / "project"
    shutil.copytree(_ROOT / "examples" / name, project)
    homes = {f"XDG_{home}_HOME": str(top / name / home) for home in ("DATA", "CACHE", "CONFIG")}
    environment = {**os.environ, **homes, "TERM": "xterm-256color"}
    environment.pop("CI", None)
    return project, environment


def _take_screenshot(browser: str, page: Path, name: str, size: tuple[int, int]) -> None:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
    width, height = size
    shot = (
        f"--window-size={width},{height}",
        "--hide-scrollbars",
        f"--screenshot={_ASSETS / name}",
    )
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *flags, f"--user-data-dir={profile}", *shot, page.as_uri()]
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

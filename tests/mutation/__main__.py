"""Do the tests notice faults? ``python -m tests.mutation [WORD…]``

Each fault of ``mutations.py``, or of those whose file or text has one of the words, is put into a copy of the last commit, and
the tests that should notice it are run there. Ends with 1 if more than one fault in ten is not caught, or one no longer
fits the source.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.mutations import MUTATIONS, Mutation

_ROOT = Path(__file__).parents[2]
_SECONDS = 900
_NO_TESTS = 5
"""The exit code of pytest when it has found none."""


@contextmanager
def scratch_copy() -> Iterator[Path]:
    """A worktree of the last commit, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="trainctl-probe-") as place:
        Path(place).chmod(0o755)  # some tests run as another user
        copy = Path(place) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(copy), "HEAD")
        try:
            yield copy
        finally:
            _git("worktree", "remove", "--force", str(copy))


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(_ROOT), *words], check=True)


def mutation_outcome(copy: Path, fault: Mutation) -> str:
    """``caught``, ``NOT CAUGHT``, or what keeps the fault from being tried."""
    path = copy / fault.path
    text = path.read_text() if path.exists() else ""
    if text.count(fault.old) != 1:
        return f"STALE: {text.count(fault.old)} times in the file"
    path.write_text(text.replace(fault.old, fault.new))
    try:
        code = run_tests(copy, fault.tests)
    finally:
        path.write_text(text)
    return {0: "NOT CAUGHT", 1: "caught", _NO_TESTS: "STALE: no tests"}.get(code, "caught: broken")


def run_tests(copy: Path, tests: tuple[str, ...]) -> int:
    """The exit code of pytest; 1 if the tests hang."""
    words = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
        *("-o", "pythonpath=. providers state schemas", "-m", "not long", *tests),
    ]
    # A place of its own: other sessions remove the directories of all but the last three.
    environ = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(copy.parent)}
    try:
        done = subprocess.run(
            words, cwd=copy, env=environ, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def main(words: list[str]) -> int:
    """Try the faults one after another, and print what became of each."""
    chosen = [
        fault
        for fault in MUTATIONS
        if not words or any(word in f"{fault.path} {fault.old}" for word in words)
    ]
    lines: list[str] = []
    with scratch_copy() as copy:
        for tests in dict.fromkeys(fault.tests for fault in chosen):
            if run_tests(copy, tests) != 0:
                print(f"these tests fail without any fault: {' '.join(tests)}", flush=True)
                return 1
        for fault in chosen:
            lines.append(mutation_outcome(copy, fault))
            print(f"{lines[-1]:12} {fault.path}: {fault.old.strip().splitlines()[0]}", flush=True)
    caught = sum(each.startswith("caught") for each in lines)
    stale = sum(each.startswith("STALE") for each in lines)
    print(f"{caught} of {len(lines)} caught, {stale} stale")
    return int(bool(stale) or caught < 0.9 * len(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

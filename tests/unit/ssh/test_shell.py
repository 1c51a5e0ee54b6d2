"""What goes over a link, through real shells, and what is cut out of the answer."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl_ssh.shell import COMMAND, MarkedOutput, call_line

TOKEN = "0123456789abcdef" * 2
SHOW = (
    "import sys; sys.stdout.buffer.write(b'\\0'.join(map(__import__('os').fsencode, sys.argv[1:])))"
)
words = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5
)


def run_call(
    shell: list[str], argv: list[str], stdin: bytes = b""
) -> tuple[MarkedOutput, bytes, MarkedOutput, bytes]:
    line = call_line(TOKEN, argv, 1)
    done = subprocess.run([*shell, "-c", COMMAND], input=line + stdin, capture_output=True)
    out, err = bytearray(), bytearray()
    cuts = MarkedOutput(TOKEN, out.extend), MarkedOutput(TOKEN, err.extend)
    for cut, data in zip(cuts, (done.stdout, done.stderr), strict=True):
        cut.feed(data)
    return cuts[0], bytes(out), cuts[1], bytes(err)


@pytest.mark.parametrize("name", ["sh", "dash", "bash", "zsh", "fish", "tcsh"])
def test_every_login_shell_runs_the_same(name: str) -> None:
    """Arguments, input, both streams and the exit code are the program's, whichever shell the account has."""
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")
    argv = ["sh", "-c", 'cat; printf %s "$1" >&2; exit 3', "sh", "it's $HOME `id` !! \\ \n*"]

    out, stdout, err, stderr = run_call([name], argv, b"input\n")

    assert (stdout, stderr.decode()) == (b"input\n", argv[-1])
    assert (out.ended, err.ended) == ("3", "")
    assert out.began is not None
    assert out.began.isdigit()


SHELLS = [name for name in ("sh", "bash", "zsh", "fish", "tcsh") if shutil.which(name)]


@given(st.sampled_from(SHELLS), words)
def test_any_words_arrive_as_they_are(shell: str, argv: list[str]) -> None:
    """Quotes, newlines, dashes and letters of any script: whichever of this machine's shells the account has passes them on unread."""
    _, stdout, _, _ = run_call([shell], [sys.executable, "-I", "-c", SHOW, *argv])

    assert stdout == b"\0".join(word.encode() for word in argv)


@given(st.binary(), st.binary(), st.integers(1, 9), st.booleans())
def test_what_is_said_between_the_marks_is_cut_out(
    before: bytes, inside: bytes, size: int, tail: bool
) -> None:
    """Whatever pieces it comes in, and whatever stands before and after."""
    inside += TOKEN[:-1].encode() if tail else b""
    stream = before + f"{TOKEN}<42\n".encode() + inside + f"{TOKEN}>7\n".encode() + b"after"
    result = bytearray()
    cut = MarkedOutput(TOKEN, result.extend)

    for start in range(0, len(stream), size):
        cut.feed(stream[start : start + size])

    assert (cut.before, bytes(result), cut.began, cut.ended) == (before, inside, "42", "7")


def test_nothing_of_the_shell_reaches_the_environment() -> None:
    _, stdout, _, _ = run_call(["sh"], ["env"])

    assert b"_t" not in b"".join(line.partition(b"=")[0] for line in stdout.splitlines())

"""Expressions in commands: one word whatever the value holds, or an error."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import by_text
from trainctl.desired.expand import command_text
from trainctl.desired.expression import ExpressionScope, InvalidExpression

SHELLS = [shell for shell in ("/bin/sh", shutil.which("bash")) if shell]
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
NASTY = st.one_of(WORDS, st.text(alphabet="'\"`$(){}\\ \n;|&<>#*?~!a1", max_size=20))


def expanded(command: str, value: str = "x") -> str:
    """A command with the value of ``var.x``."""
    return command_text(command, ExpressionScope({"x": value}))


def run(shell: str, script: str) -> bytes:
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True, timeout=60)
    return done.stdout


PLACES = [
    "printf %s ${{ var.x }}",
    "A=1 printf %s ${{var.x}} # a comment's end",
    "echo 'it is' >/dev/null; printf %s ${{ var.x }}",
    'echo "$(date)" >/dev/null && printf %s ${{ var.x }}',
    "(printf %s ${{ var.x }})",
    "{ printf %s ${{ var.x }}; }",
    "true \\\n && printf %s ${{ var.x }}",
    'V=${{ var.x }}; printf %s "$V"',
    'printf "%s" ${{ var.x }}',
    'cd "$(dirname "$0")"; printf %s ${{ var.x }}',
    "printf %s $(printf %s ${{ var.x }} >/dev/null)${{ var.x }}",
    "echo ${HOME#/} $# >/dev/null; printf %s ${{ var.x }}",
    'x="a\\"b"; printf %s ${{ var.x }}',
    "echo don\\'t >/dev/null; printf %s ${{ var.x }}",
    "echo 'a$' >/dev/null; printf %s ${{ var.x }}",
    'echo $((1 + 2)) "$((3))" `date` >/dev/null; printf %s ${{ var.x }}',
]


@pytest.mark.parametrize("shell", SHELLS)
@given(value=NASTY)
def test_a_value_reaches_the_program_as_one_word(shell: str, value: str) -> None:
    """Nothing in it is read, split or run."""
    script = "\nprintf '\\0'\n".join(expanded(command, value) for command in PLACES)
    assert run(shell, script).split(b"\0") == [value.encode()] * len(PLACES)


@pytest.mark.parametrize(("command", "why"), by_text("desired/unsafe_commands"))
def test_a_value_that_the_shell_would_read_is_refused(command: str, why: str) -> None:
    with pytest.raises(InvalidExpression) as refusal:
        expanded(command)
    assert why in str(refusal.value)
    assert "environment_variables" in refusal.value.detail


def test_raw_inserts_the_value_as_it_is() -> None:
    """Flags of several words, inside quotes or not; a quote that it opens is open."""
    assert expanded("python t.py ${{ raw(var.x) }}", "--a 1 --b 2") == "python t.py --a 1 --b 2"
    assert expanded("echo '${{ raw( var.x ) }}'", "a") == "echo 'a'"
    with pytest.raises(InvalidExpression, match="inside single quotes"):
        expanded("echo ${{ raw(var.x) }} ${{ var.x }}", "'")


@given(
    before=st.text(alphabet="'\"`$(){}\\ \n;#ax=", max_size=14),
    value=st.sampled_from(["$(touch canary)", "a'b", "`touch canary`", "a b"]),
)
def test_a_value_is_never_run_whatever_is_before_it(
    tmp_path: Path, before: str, value: str
) -> None:
    """Or the command is refused."""
    try:
        script = expanded(f"{before}${{{{ var.x }}}}", value)
    except InvalidExpression:
        return
    for shell in SHELLS:
        subprocess.run(
            [shell, "-c", script], capture_output=True, check=False, timeout=60, cwd=tmp_path
        )
        assert not (tmp_path / "canary").exists(), (shell, script)

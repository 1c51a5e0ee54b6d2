"""Expressions in commands: one word whatever the value holds, or an error."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.desired.expand import command_text
from trainctl.desired.expression import ExpressionScope, InvalidExpression

SHELLS = [shell for shell in ("/bin/sh", shutil.which("bash")) if shell]
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
NASTY = st.one_of(WORDS, st.text(alphabet="'\"`$(){}\\ \n;|&<>#*?~!a1", max_size=20))


def expanded(command: str, value: str = "x") -> str:
    """A command with ``var.x`` put in."""
    return command_text(command, ExpressionScope({"x": value}))


def run(shell: str, script: str) -> bytes:
    """What a real shell prints."""
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True, timeout=20)
    return done.stdout


PLACES = [
    "printf %s ${{ var.x }}",
    "A=1 printf %s ${{var.x}} # a comment's end",
    "echo 'it is' >/dev/null; printf %s ${{ var.x }}",
    'echo "$(date)" >/dev/null && printf %s ${{ var.x }}',
    'printf %s "$(printf %s ${{ var.x }}; echo .)"',
    "(printf %s ${{ var.x }})",
    "{ printf %s ${{ var.x }}; }",
    "true \\\n && printf %s ${{ var.x }}",
    'V=${{ var.x }}; printf %s "$V"',
    'printf "%s" ${{ var.x }}',
    "echo ${HOME#/} $# >/dev/null; printf %s ${{ var.x }}",
    'x="a\\"b"; printf %s ${{ var.x }}',
    "echo don\\'t >/dev/null; printf %s ${{ var.x }}",
    "echo 'a$' >/dev/null; printf %s ${{ var.x }}",
]


@pytest.mark.parametrize("shell", SHELLS)
@given(value=NASTY)
def test_a_value_reaches_the_program_as_one_word(shell: str, value: str) -> None:
    """A real shell hands over exactly the value, wherever it stands: nothing in it is read, split or run."""
    script = "\nprintf '\\0'\n".join(expanded(command, value) for command in PLACES)
    wanted = [value + ("." if "$(printf" in command else "") for command in PLACES]
    assert run(shell, script).split(b"\0") == [each.encode() for each in wanted]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo '${{ var.x }}'", "inside single quotes"),
        ('echo "${{ var.x }}"', "inside double quotes"),
        ('echo "a ${{ var.x }} b"', "inside double quotes"),
        ("sh -c 'python ${{ var.x }}'", "inside single quotes"),
        ('echo "$(echo "${{ var.x }}")"', "inside double quotes"),
        ("echo `echo ${{ var.x }}`", "inside backquotes"),
        ("echo \\${{ var.x }}", "after a backslash"),
        ("echo $${{ var.x }}", "after '$'"),
        ("echo ${Y:-${{ var.x }}}", "inside ${…}"),
        ('echo "${Y:-"${{ var.x }}"}"', "inside double quotes"),
        ("echo $((${{ var.x }} + 1))", "in arithmetic"),
        ("if ((${{ var.x }} > 1)); then true; fi", "in arithmetic"),
        ("true # ${{ var.x }}", "in a comment"),
        ("cat <<EOF\n${{ var.x }}\nEOF", "in a here-document"),
        ("cat <<-'EOF'\na\n${{ var.x }}\nEOF", "in a here-document"),
        ("echo $'a' ${{ var.x }}", "which sh and bash read differently"),
        ('echo "$(case x in x) echo "${{ var.x }}";; esac)"', "both 'case' and $(…)"),
    ],
)
def test_where_the_shell_quotes_already_a_word_is_refused(command: str, why: str) -> None:
    """The message says where it stands and what else to write."""
    with pytest.raises(InvalidExpression) as refusal:
        expanded(command)
    assert why in str(refusal.value)
    assert "environment_variables" in refusal.value.detail


def test_raw_inserts_the_value_as_it_is() -> None:
    """Flags of several words, inside quotes or not."""
    assert expanded("python t.py ${{ raw(var.x) }}", "--a 1 --b 2") == "python t.py --a 1 --b 2"
    assert expanded("echo '${{ raw( var.x ) }}'", "a") == "echo 'a'"


def test_a_raw_value_counts_as_read_by_the_shell() -> None:
    """A quote that it opens is open."""
    with pytest.raises(InvalidExpression, match="inside single quotes"):
        expanded("echo ${{ raw(var.x) }} ${{ var.x }}", "'")


def test_the_shells_own_variables_stay() -> None:
    """``$NAME`` and ``${NAME}`` are not ours."""
    assert expanded("echo $A ${B} ${{ var.x }}", "a b") == "echo $A ${B} 'a b'"


@given(
    before=st.text(alphabet="'\"`$(){}\\ \n;#<>ax=", max_size=14),
    marker=st.sampled_from(["$(echo PWNED)", "a'b", "`echo PWNED`", "a b"]),
)
def test_whatever_stands_before_the_value_is_never_run(
    tmp_path_factory: pytest.TempPathFactory, before: str, marker: str
) -> None:
    """A command is refused, or every shell that takes it keeps the value out of its own reading."""
    canary = Path(str(tmp_path_factory.getbasetemp())) / "canary"
    value = marker.replace("echo PWNED", f"touch {canary}")
    if "<" in before or ">" in before:
        before = before.replace(">", "").replace("<", "")
    try:
        script = expanded(f"{before}${{{{ var.x }}}}", value)
    except InvalidExpression:
        return
    for shell in SHELLS:
        subprocess.run(
            [shell, "-c", script],
            capture_output=True,
            check=False,
            timeout=20,
            cwd=tmp_path_factory.getbasetemp(),
        )
        assert not canary.exists(), (shell, script)

"""Everything printed goes through one output: secrets masked, controls visible, colour where it is wanted."""

from __future__ import annotations

import io
import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.terminals import Screen, Terminal
from trainctl.model.redaction import Redactor
from trainctl.views.terminal.output import TerminalOutput, visible


def test_a_registered_secret_is_printed_by_no_method() -> None:
    """Neither plain nor as JSON spells it."""
    secret = 'pass"wörd\\with\nlines-that-are-long'
    screen = Screen(Terminal, secret=secret)
    screen.output.print(f"a {secret} b")
    screen.output.json({"key": secret})
    screen.output.note(secret)
    screen.output.ask(secret)
    screen.output.draw([secret])
    printed = screen.out + screen.err
    assert not [
        line for line in [*secret.splitlines(), json.dumps(secret)[1:-1]] if line in printed
    ]
    assert printed.count("(redacted)") >= 5


HIDDEN = {*map(chr, [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200B, 0xE0041])}  # fmt: skip


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_control_reaches_the_terminal(text: str) -> None:
    shown = visible(text)
    assert all(character in "\n\t" or ord(character) >= 32 for character in shown)
    assert not set(shown) & HIDDEN
    shown.encode()


def test_sequences_in_names_are_shown_as_text() -> None:
    """Those that clear, retitle or write elsewhere, or would end a style; a carriage return is a new line."""
    screen = Screen(Terminal)
    screen.output.print("a\x1b[2Jb\x1b]0;title\x07c\rd\u202ee")
    assert screen.out == "a\\u001b[2Jb\\u001b]0;title\\u0007c\nd\\u202ee\n"
    assert screen.output.style("a\x1b[8mb", "red") == "\x1b[31ma\\u001b[8mb\x1b[0m"


@pytest.mark.parametrize(
    ("stream", "environment", "colored"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    stream: type[io.StringIO], environment: dict[str, str], colored: bool
) -> None:
    screen = Screen(stream, **environment)
    screen.output.print(screen.output.style("text", "red"))
    assert ("\x1b[31m" in screen.out) is colored


def test_characters_that_the_stream_cannot_encode_are_escaped() -> None:
    raw = io.BytesIO()
    output = TerminalOutput(io.TextIOWrapper(raw, "ascii"), io.StringIO(), Redactor(), {})
    output.print("naïve ✓")
    output.flush()
    assert raw.getvalue() == b"na\\xefve \\u2713\n"


LINE = "\x1b[1;32mok\x1b[K 10%\r20%\x1b]0;title\x07\x1b[2J\u202e\x9b1m a-long-secret"


@pytest.mark.parametrize(
    ("stream", "environment", "shown"),
    [
        (io.StringIO, {}, LINE.replace("a-long-secret", "(redacted)")),
        (Terminal, {}, "\x1b[1;32mok 10%\r20%\\u202e\\u009b1m (redacted)\x1b[0m"),
        (Terminal, {"NO_COLOR": "1"}, "ok 10%\r20%\\u202e\\u009b1m (redacted)"),
    ],
)
def test_a_log_keeps_its_bytes_in_a_pipe_and_its_styles_and_bars_on_a_terminal(
    stream: type[io.StringIO], environment: dict[str, str], shown: str
) -> None:
    """On a terminal a style ends with its line; titles, cursor moves and directions are removed."""
    screen = Screen(stream, secret="a-long-secret", **environment)
    screen.output.log_lines(LINE, "[rank 1] ", "[rank 1] ")
    assert screen.out == f"[rank 1] {shown}\n"


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\x07\x9b[]\\;m0P\r\t"))))
def test_a_log_line_has_no_effect_beyond_itself(line: str) -> None:
    """A terminal gets no sequence but styles, no control but tab and carriage return, and no direction mark."""
    screen = Screen(Terminal)
    screen.output.log_lines(line.replace("\n", ""), "", "")
    shown = re.sub(r"\x1b\[[0-9;:]*m", "", screen.out.removesuffix("\n"))
    assert not [item for item in shown if item not in "\t\r" and unicodedata.category(item) == "Cc"]
    assert not set(shown) & set("\u202a\u202e\u2066\u2069\u200b\u2028")


@given(
    st.text(alphabet=st.sampled_from(":# \r\t[]vso\u00a0a")),
    st.sampled_from(["", "::", "##[", "##VSO["]),
)
def test_no_line_is_a_command_of_a_ci_system(text: str, command: str) -> None:
    """Neither of a log nor ours, as GitHub and Azure read lines."""
    screen = Screen(GITHUB_ACTIONS="true")
    screen.output.log_lines(text + command + "error::x", "", "")
    screen.output.print(text + command + "error::x")
    for line in re.split(r"[\r\n]", screen.out):
        assert not line.strip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line.lower()

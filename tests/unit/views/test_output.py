"""The one door: secrets masked, controls visible, colour where it is wanted."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.model.redaction import Redactor
from trainctl.views.output import Output, visible, without_sequences


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def make(
    stream: type[io.StringIO] = io.StringIO, **environment: str
) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = stream(), stream()
    return Output(out, err, Redactor(), {"TERM": "xterm", **environment}), out, err


def test_a_registered_secret_leaves_by_no_door() -> None:
    """Whatever method prints it, a secret's value doesn't come out, plain or as JSON spells it."""
    secret = 'pass"wörd\\with\nlines-that-are-long'
    out, err = io.StringIO(), Terminal()
    redactor = Redactor()
    output = Output(out, err, redactor, {"TERM": "xterm"})
    redactor.register(secret)
    output.print(f"a {secret} b")
    output.json({"key": secret})
    output.note(secret)
    output.ask(secret)
    output.draw([secret])
    said = out.getvalue() + err.getvalue()
    for line in [*secret.splitlines(), json.dumps(secret)[1:-1]]:
        assert line not in said
    assert said.count("(redacted)") >= 5


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_control_reaches_the_terminal(text: str) -> None:
    """Of all text, only newline and tab are left as controls, and no direction marks or lone surrogates."""
    shown = visible(text)
    assert all(character in "\n\t" or ord(character) >= 32 for character in shown)
    assert not set(shown) & {
        chr(code) for code in [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F)]
    }
    shown.encode()


@given(st.text())
def test_json_stays_the_same_value(text: str) -> None:
    """What is made visible inside JSON is read back as what it was."""
    output, out, _ = make()
    output.json({"value": text})
    assert json.loads(out.getvalue()) == {"value": text}


def test_a_hostile_name_can_not_move_the_cursor() -> None:
    """Sequences that clear, retitle or write elsewhere are shown as text; a carriage return is a new line."""
    output, out, _ = make(Terminal)
    output.print("a\x1b[2Jb\x1b]0;title\x07c\rd\u202ee")
    assert out.getvalue() == "a\\u001b[2Jb\\u001b]0;title\\u0007c\nd\\u202ee\n"


def test_a_style_in_foreign_text_does_not_stay() -> None:
    """Styled text is made visible inside, so that it can't end or change its style."""
    output, _, _ = make(Terminal)
    assert output.style("a\x1b[8mb", "red") == "\x1b[31ma\\u001b[8mb\x1b[0m"


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
    """A pipe, a set NO_COLOR and a dumb terminal get plain text."""
    output, out, _ = make(stream, **environment)
    output.print(output.style("text", "red"))
    assert ("\x1b[31m" in out.getvalue()) is colored


def test_text_that_the_stream_can_not_say_is_written_out() -> None:
    """A stream of another encoding gets escapes and no exception."""
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, "ascii"), io.StringIO(), Redactor(), {})
    output.print("naïve ✓")
    output.flush()
    assert raw.getvalue() == b"na\\xefve \\u2713\n"


def test_logs_lose_their_sequences() -> None:
    """Colours and titles of a job's log are left out, its words stay."""
    assert without_sequences("\x1b[1;32mok\x1b[0m \x1b]0;title\x07done\x1b[K") == "ok done"


def test_text_gives_no_orders_to_a_ci_system() -> None:
    """With CI set, a line that would be read as a workflow command is written so that it is none; others stay."""
    text = "::error::x\n  ##[group]y\n##vso[task]z\n## Title\na::b\n: c"
    shown = "\\u003a:error::x\n  \\u0023#[group]y\n\\u0023#vso[task]z\n## Title\na::b\n: c\n"
    for environment, wanted in (({"CI": "true"}, shown), ({}, text + "\n")):
        output, out, _ = make(io.StringIO, **environment)
        output.print(text)
        assert out.getvalue() == wanted

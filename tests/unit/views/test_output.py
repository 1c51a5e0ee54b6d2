"""The one door: secrets masked, controls visible, colour where it is wanted."""

from __future__ import annotations

import io
import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.model.redaction import Redactor
from trainctl.views.terminal.output import TerminalOutput, visible


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def make(
    stream: type[io.StringIO] = io.StringIO, **environment: str
) -> tuple[TerminalOutput, io.StringIO, io.StringIO]:
    out, err = stream(), stream()
    return TerminalOutput(out, err, Redactor(), {"TERM": "xterm", **environment}), out, err


def test_a_registered_secret_leaves_by_no_door() -> None:
    """Whatever method prints it, a secret's value doesn't come out, plain or as JSON spells it."""
    secret = 'pass"wörd\\with\nlines-that-are-long'
    out, err = io.StringIO(), Terminal()
    redactor = Redactor()
    output = TerminalOutput(out, err, redactor, {"TERM": "xterm"})
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


def test_json_has_no_halves_of_characters() -> None:
    """As of a file whose name is no UTF-8: strict parsers refuse the whole document."""
    output, out, _ = make()
    output.json({"name": "checkpoint-5\udcff", "other": "\U0001f600"})

    text = out.getvalue()
    assert json.loads(text) == {"name": "checkpoint-5\ufffd", "other": "\U0001f600"}
    assert "\\ud" not in text


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_control_reaches_the_terminal(text: str) -> None:
    """Of all text, only newline and tab are left as controls, and no direction marks or lone surrogates."""
    shown = visible(text)
    assert all(character in "\n\t" or ord(character) >= 32 for character in shown)
    assert not set(shown) & {
        chr(code)
        for code in [
            0x7F,
            *range(0x80, 0xA0),
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
            0x200B,
            0xE0041,
        ]
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
    output = TerminalOutput(io.TextIOWrapper(raw, "ascii"), io.StringIO(), Redactor(), {})
    output.print("naïve ✓")
    output.flush()
    assert raw.getvalue() == b"na\\xefve \\u2713\n"


def test_a_log_is_as_it_is_in_a_pipe() -> None:
    """A pipe gets the job's own bytes, sequences and all; only secrets are masked."""
    out = io.StringIO()
    redactor = Redactor()
    redactor.register("a-long-secret")
    TerminalOutput(out, io.StringIO(), redactor, {}).log(
        "\x1b[2J\u202ea-long-secret\r::x", "[rank 1] "
    )
    assert out.getvalue() == "[rank 1] \x1b[2J\u202e(redacted)\r::x\n"


def test_a_log_on_a_terminal_keeps_its_colours_and_its_bars() -> None:
    """Styles and carriage returns do what they do, and a style ends with its line; titles, cursor moves and directions don't."""
    line = "\x1b[1;32mok\x1b[K 10%\r20%\x1b]0;title\x07\x1b[2J\u202e\x9b1m"
    for environment, wanted in (
        ({}, "\x1b[1;32mok 10%\r20%\\u202e\\u009b1m\x1b[0m\n"),
        ({"NO_COLOR": "1"}, "ok 10%\r20%\\u202e\\u009b1m\n"),
    ):
        output, out, _ = make(Terminal, **environment)
        output.log(line)
        assert out.getvalue() == wanted


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\x07\x9b[]\\;m0P\r\t"))))
def test_a_log_line_never_reaches_beyond_itself(line: str) -> None:
    """Whatever a job prints, a terminal sees no sequence but styles, no control but tab and carriage return, and no direction mark."""
    output, out, _ = make(Terminal)
    output.log(line.replace("\n", ""))
    said = re.sub(r"\x1b\[[0-9;:]*m", "", out.getvalue().removesuffix("\n"))
    assert not [one for one in said if one not in "\t\r" and unicodedata.category(one) == "Cc"]
    assert not set(said) & set("\u202a\u202e\u2066\u2069\u200b\u2028")


@given(
    st.text(alphabet=st.sampled_from(":# \r\t[]vso\u00a0a")),
    st.sampled_from(["", "::", "##[", "##VSO["]),
)
def test_no_line_gives_orders_to_a_ci_system(text: str, order: str) -> None:
    """No line of any text, a log's or ours, is a command as GitHub and Azure read lines."""
    output, out, _ = make(io.StringIO, GITHUB_ACTIONS="true")
    output.log(text + order + "error::x")
    output.print(text + order + "error::x")
    for line in re.split(r"[\r\n]", out.getvalue()):
        assert not line.strip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line.lower()


def test_text_gives_no_orders_to_a_ci_system() -> None:
    """With CI set, a line that would be read as a workflow command is written so that it is none; others stay."""
    text = "::error::x\n  ##[group]y\n##vso[task]z\n## Title\na::b\n: c"
    shown = "\\u003a:error::x\n  \\u0023#[group]y\n\\u0023#vso[task]z\n## Title\na::b\n: c\n"
    for environment, wanted in (
        ({"CI": "true"}, shown),
        ({"TF_BUILD": "True"}, shown),
        ({}, text + "\n"),
    ):
        output, out, _ = make(io.StringIO, **environment)
        output.print(text)
        assert out.getvalue() == wanted


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_terminal_breaks_lines_between_words_and_a_pipe_does_not(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is wider than the window but for one long word, every word is there in its order, and rows go on further in."""
    monkeypatch.setenv("COLUMNS", str(width))
    said = "job.fit: " + "no program is found " * 6 + "/a/" + "long" * 40 + "\n  # (" + "word " * 40
    output, out, err = make(Terminal)
    output.note(output.error_style(said, "bold"))
    output.prose(said)
    for text in (out.getvalue(), re.sub(r"\x1b\[\d+m", "", err.getvalue())):
        assert text.split() == said.split()
        assert all(len(line) <= width or "longlong" in line for line in text.splitlines())
        assert text.splitlines()[1].startswith("  ")
        assert text.splitlines()[-1].startswith("    word")
    piped, out, err = make()
    piped.note(said)
    piped.prose(said)
    assert out.getvalue() == err.getvalue() == said + "\n"

"""The line that is shown with a problem: the right one, with a caret below the place, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainctl.manifest.excerpt import excerpt
from trainctl.model.diagnostics import Position
from trainctl.views.problems import excerpt_lines
from trainctl.views.terminal.text import INVISIBLE, display_width

PLANTED = "planted " * 9
words = st.text("abc-_ '\"#:&*日", min_size=1, max_size=8)
keys = st.text("abcxyz_", min_size=1, max_size=8)
plain = st.recursive(
    words | st.integers(), lambda below: st.lists(below, max_size=3) | st.dictionaries(keys, below, max_size=3), max_leaves=5
)  # fmt: skip
hiding = st.sampled_from(["environment_variables", "password", "api_key", "hub_token"])
planted = st.recursive(
    st.just(PLANTED), lambda below: st.lists(below, min_size=1, max_size=3) | st.dictionaries(keys, below, min_size=1, max_size=3), max_leaves=6
)  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """A mapping with a secret somewhere below a key that hides."""
    inner: dict[str, object] = draw(st.dictionaries(keys, plain, max_size=3))
    inner[draw(hiding)] = draw(planted)
    inner.update(draw(st.dictionaries(keys, plain, max_size=2)))
    for _ in range(draw(st.integers(0, 3))):
        inner = {
            **draw(st.dictionaries(keys, plain, max_size=2)),
            draw(keys): draw(st.sampled_from([inner, [inner]])),
        }
    return inner


STYLES: list[dict[str, object]] = [
    {"default_flow_style": False},
    {"default_flow_style": None, "width": 40},
    {"default_flow_style": True, "width": 30},
    {"default_style": '"', "width": 20},
    {"default_style": "|"},
]
forms = st.sampled_from(
    [
        *(partial(yaml.safe_dump, sort_keys=False, **style) for style in STYLES),
        *(partial(json.dumps, indent=indent) for indent in (1, 0, None)),
    ]
)


@given(documents(), forms)
def test_no_place_shows_a_value_below_a_key_that_hides(
    document: dict[str, object], form: Callable[[object], str]
) -> None:
    """Whatever the layout, and wherever a problem points."""
    lines = form(document).split("\n")
    for number, line in enumerate(lines, 1):
        for column in {1, len(line) // 2 + 1, len(line) + 1}:
            text = excerpt(Position("f", number, column, lines=lines))
            assert text is None or "planted" not in text[0]


@given(
    st.lists(st.text(max_size=120), min_size=1, max_size=3), st.integers(-1, 5), st.integers(0, 130)
)
def test_any_text_is_shown_in_two_lines_that_fit(lines: list[str], line: int, column: int) -> None:
    """Or none: of at most 80 columns, without control characters, the caret in the second."""
    excerpted = excerpt_lines(Position("f", line, column, lines=lines))
    assert len(excerpted) in (0, 2)
    for text in excerpted:
        assert display_width(text) <= 80
        assert INVISIBLE.search(text) is None
    assert not excerpted or excerpted[1].endswith("^")


@given(st.text("abcdef \t日", min_size=1, max_size=120).filter(str.strip), st.data())
def test_the_caret_is_below_its_character(line: str, data: st.DataObject) -> None:
    column = data.draw(st.integers(1, len(line.rstrip())))
    text, caret = excerpt_lines(Position("f", 1, column, lines=[line]))
    before = ""
    while display_width(before) < display_width(caret) - 1:
        before += text[len(before)]
    wanted = line[column - 1]
    assert text[len(before)] == (" " if wanted == "\t" else wanted)


def test_a_place_without_text_shows_nothing() -> None:
    lines = ["jobs:", ""]
    for line, column in ((3, 1), (1, 7), (2, 1)):
        assert excerpt_lines(Position("f", line, column, lines=lines)) == []
    assert excerpt_lines(Position("f", 1, 1)) == []
    assert excerpt_lines(Position("f", key_path="jobs", lines=lines)) == []


def shown(*lines: str) -> list[str | None]:
    """What is shown of each line of a file."""
    result = [excerpt(Position("f", number + 1, 1, lines=[*lines])) for number in range(len(lines))]
    return [text and text[0] for text in result]


def test_closed_quotes_and_brackets_hide_nothing_below() -> None:
    """Nor do those of a comment, an escaped one, inches, an apostrophe, or an anchor."""
    lines = [
        '# 24" monitor, [and more',
        'a: "say \\"hi\\" to {x"',
        "b: it's 15\" wide # don't",
        "c: 'it''s [one'",
        "base: &base {x: 1}",
        "d: [1, 2]",
        "e: last",
    ]
    assert shown(*lines) == [*lines[:4], None, *lines[5:]]


def test_open_quotes_and_brackets_hide_everything_below() -> None:
    """A text over several lines may be a secret, and a bracket may be open below a key that hides."""
    assert shown('a: "one', "  two")[1] is None
    assert shown("a = '''one", "two")[1] is None
    assert shown("password: [", "# ]", "  two]")[2] is None
    assert shown("a: [", "  two]")[1] == "  two]"


def test_a_token_is_hidden_whatever_its_key() -> None:
    lines = [
        "a: hf_plantedPLANTED0123456789",
        "b: [x, 'https://me:planted@host/x', y]",
        "c: |",
        "  -----BEGIN PRIVATE KEY-----",
        "  planted",
        "  -----END PRIVATE KEY-----",
        "d: x",
    ]
    assert shown(*lines) == [None, None, "c: |", None, None, None, "d: x"]


def test_a_line_with_a_key_that_hides_is_hidden() -> None:
    lines = ["auth_secret_name: hub", "a: {password: planted}", "secret: x", "secrets: {a: b}"]
    assert shown(*lines) == [None, None, None, "secrets: {a: b}"]

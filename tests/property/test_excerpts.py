"""The line that is shown with a diagnostic: the right one, under the right place, and without what may be a secret."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
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
    """A mapping in which a secret lies somewhere below a key that says so."""
    inner: dict[str, object] = draw(st.dictionaries(keys, plain, max_size=3))
    inner[draw(hiding)] = draw(planted)
    inner.update(draw(st.dictionaries(keys, plain, max_size=2)))
    for _ in range(draw(st.integers(0, 3))):
        inner = {
            **draw(st.dictionaries(keys, plain, max_size=2)),
            draw(keys): draw(st.sampled_from([inner, [inner]])),
        }
    return inner


forms = st.sampled_from(
    [
        lambda value: yaml.safe_dump(value, default_flow_style=False, sort_keys=False),
        lambda value: yaml.safe_dump(value, default_flow_style=None, sort_keys=False, width=40),
        lambda value: yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=30),
        lambda value: yaml.safe_dump(value, default_style='"', sort_keys=False, width=20),
        lambda value: yaml.safe_dump(value, default_style="|", sort_keys=False),
        lambda value: json.dumps(value, indent=1),
        lambda value: json.dumps(value, indent=0),
        lambda value: json.dumps(value),
    ]
)  # fmt: skip


@given(documents(), forms)
def test_no_place_shows_what_lies_below_a_key_that_hides(
    document: dict[str, object], form: Callable[[object], str]
) -> None:
    """Whatever the layout, and wherever a diagnostic points, a value under such a key is not on the line that is shown."""
    lines = form(document).split("\n")
    for number, line in enumerate(lines, 1):
        for column in {1, len(line) // 2 + 1, len(line) + 1}:
            found = excerpt(Position("f", number, column, lines=lines))
            assert found is None or "planted" not in found[0]


@given(
    st.lists(st.text(max_size=120), min_size=1, max_size=3), st.integers(-1, 5), st.integers(0, 130)
)
def test_any_text_gives_two_lines_that_fit(lines: list[str], line: int, column: int) -> None:
    """Nothing is shown, or two lines of at most 80 columns without anything that acts or hides, the caret below the first."""
    shown = excerpt_lines(Position("f", line, column, lines=lines))
    assert len(shown) in (0, 2)
    for one in shown:
        assert display_width(one) <= 80
        assert INVISIBLE.search(one) is None
    assert not shown or shown[1].endswith("^")


@given(st.text("abcdef \t日", min_size=1, max_size=120).filter(str.strip), st.data())
def test_the_caret_stands_below_its_character(line: str, data: st.DataObject) -> None:
    """The character above the caret is the one at the column, whatever stands before it and however the line was cut."""
    column = data.draw(st.integers(1, len(line.rstrip())))
    text, caret = excerpt_lines(Position("f", 1, column, lines=[line]))
    before = ""
    while display_width(before) < display_width(caret) - 1:
        before += text[len(before)]
    wanted = line[column - 1]
    assert text[len(before)] == (" " if wanted == "\t" else wanted)


def test_a_place_that_is_not_there_shows_nothing() -> None:
    """Behind the end of the file, behind the end of a line, on an empty line, or where no text is known."""
    lines = ["jobs:", ""]
    for where in (
        Position("f", 3, 1, lines=lines),
        Position("f", 1, 7, lines=lines),
        Position("f", 2, 1, lines=lines),
        Position("f", 1, 1),
        Position("f", key_path="jobs", lines=lines),
    ):
        assert excerpt_lines(where) == []


def test_quotes_and_brackets_that_are_closed_hide_nothing_below() -> None:
    """Nor do those of a comment, an escaped one, inches, an apostrophe, or an anchor beside the line."""
    lines = [
        '# 24" monitor, [and more',
        'a: "say \\"hi\\" to {x"',
        "b: it's 15\" wide # don't",
        "c: 'it''s [one'",
        "base: &base {x: 1}",
        "d: [1, 2]",
        "e: last",
    ]
    shown = [excerpt(Position("f", number, 1, lines=lines)) for number in range(1, 8)]
    assert [one and one[0] for one in shown] == [*lines[:4], "base: &base (not shown)", *lines[5:]]


def test_what_is_not_closed_hides_all_below() -> None:
    """A text that goes on over lines may be a secret, and a bracket may be opened below a key that hides."""
    assert excerpt(Position("f", 2, 1, lines=['a: "one', "  two"])) is None
    assert excerpt(Position("f", 2, 1, lines=["a = '''one", "two"])) is None
    assert excerpt(Position("f", 3, 1, lines=["password: [", "# ]", "  two]"])) is None
    assert excerpt(Position("f", 2, 1, lines=["a: [", "  two]"])) == ("  two]", 0)


def test_a_token_is_left_out_wherever_it_stands() -> None:
    """A token, a URL with a password and a private key are not shown, whatever their key is called."""
    lines = [
        "a: hf_plantedPLANTED0123456789",
        "b: [x, 'https://me:planted@host/x', y]",
        "c: |",
        "  -----BEGIN PRIVATE KEY-----",
        "  planted",
        "  -----END PRIVATE KEY-----",
        "d: x",
    ]
    shown = [excerpt(Position("f", number, 1, lines=lines)) for number in range(1, 8)]
    assert [one and one[0] for one in shown] == [
        "a: (not shown)", "b: [x, '(not shown)', y]", "c: |", "  (not shown)", None, None, "d: x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("auth_secret_name: hub  # declared below", "auth_secret_name: hub  # declared below"),
        ('auth_secret_name = "hub"', 'auth_secret_name = "hub"'),
        ("a: {auth_secret_name: 'hub', password: planted}", "a: {auth_secret_name: 'hub', password: (not shown)"),
        ("auth_secret_name: planted+value", "auth_secret_name: (not shown)"),
        ("auth_secret_name: hub planted", "auth_secret_name: (not shown)"),
        ("auth_secret_name: hub,planted", "auth_secret_name: (not shown)"),
        ("auth_secret_name: hub#planted", "auth_secret_name: (not shown)"),
        ("secret: planted", "secret: (not shown)"),
    ],
)  # fmt: skip
def test_the_name_of_a_secret_is_no_secret(line: str, shown: str) -> None:
    """What is said of one that nobody declared is about it. What can't be a name, and what is behind it, stay hidden."""
    assert excerpt(Position("f", 1, 1, lines=[line])) == (shown, 0)

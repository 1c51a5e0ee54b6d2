"""Words become values of the declared types, or a short refusal."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.unit.cli.conftest import Declare
from trainctl.cli import invoke
from trainctl.cli.options import argument, option


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@pytest.fixture(autouse=True)
def values(declare: Declare) -> dict[str, Any]:
    """The values that the command ``take`` was given."""
    given: dict[str, Any] = {}

    def command(
        addresses: Annotated[list[str], argument("ADDRESS", "")],
        rank: Annotated[int | None, option("--rank X", "")] = None,
        seconds: Annotated[float, option("--seconds X", "")] = 1.5,
        file: Annotated[Path | None, option("--file X", "")] = None,
        size: Annotated[Size, option("--size X", "")] = Size.SMALL,
        var: Annotated[list[str] | None, option("--var X", "")] = None,
        wait: Annotated[bool, option("--wait", "")] = False,
    ) -> int:
        given.update(rank=rank, seconds=seconds, file=file, size=size, var=var, wait=wait)
        given["addresses"] = addresses
        return 0

    declare("take", command)
    return given


def test_each_type_arrives(values: dict[str, Any]) -> None:
    words = (
        "take job.a job.b --rank 3 --seconds 2 --file x/y --size large --var a=1 --var b=2 --wait"
    )
    assert invoke.invoke(words.split()) == 0
    assert values == {
        "addresses": ["job.a", "job.b"], "rank": 3, "seconds": 2.0, "file": Path("x/y"), "size": Size.LARGE,
        "var": ["a=1", "b=2"], "wait": True,
    }  # fmt: skip
    assert type(values["seconds"]) is float
    assert invoke.invoke(["take", "job.a"]) == 0
    assert (values["var"], values["size"], values["wait"]) == (None, Size.SMALL, False)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("take a --rank x", "invalid value for '--rank': 'x' is not an integer"),
        ("take a --seconds soon", "invalid value for '--seconds': 'soon' is not a number"),
        ("take a --size huge", "invalid value for '--size': 'huge' is not one of small, large"),
        ("take", "missing argument 'ADDRESS'"),
    ],
)
def test_a_wrong_value_is_named(
    words: str, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke.invoke(words.split()) == 64
    hint = "  Run trainctl take --help for its arguments.\n"
    assert capsys.readouterr().err == f"error: take: {refusal} [wrong-usage]\n{hint}"

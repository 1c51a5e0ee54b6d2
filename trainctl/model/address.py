"""Addresses of resources: ``kind.name`` or ``kind.name["key"]``."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import unicodedata
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

NAME = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A declared name. It becomes a file name, so nothing else is allowed."""

_LONGEST_SLUG = 64


def slug(text: str) -> str:
    """Return the name in addresses for a name as people write it.

    A valid name stays. Otherwise letters lose their accents, and each run of other characters than letters, digits, ``.``
    and ``_`` becomes one ``-``, none at the ends; a text without any letter or digit becomes ``name-`` and a digest.
    """
    if NAME.fullmatch(text):
        return text
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9._]+", "-", ascii_text)
    name = re.sub(r"^[^A-Za-z0-9]+", "", name)[:_LONGEST_SLUG].rstrip("-._")
    return name or f"name-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_ADDRESS = compile_lazily(
    rf"(?P<kind>[a-z]+)\.(?P<name>{NAME.pattern})(?:\[(?P<key>\".*\")\])?", re.DOTALL
)

_BARE = compile_lazily(r"([^\[]+)\[([^\"].*)\]", re.DOTALL)


class Kind(StrEnum):
    """Kinds of resources, in the order of listings."""

    PROJECT = "project"
    CLUSTER = "cluster"
    NODE = "node"
    WEIGHTS = "weights"
    CACHE = "cache"
    JOB = "job"
    DEPLOYMENT = "deployment"

    __hash__ = str.__hash__  # faster than Enum.__hash__, which is written in Python


STATE_ONLY_KINDS = frozenset({Kind.PROJECT})
"""Kinds that exist only in the state."""

_ORDER = {kind: position for position, kind in enumerate(Kind)}
_KINDS = {kind.value: kind for kind in Kind}


class Address(NamedTuple):
    """Address of a resource; ``key`` is for matrices: ``job.sweep["lr=1e-5"]``.

    A tuple for speed: tuples hash and compare without running Python code.
    """

    kind: Kind
    name: str
    key: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.key is None else f"[{json.dumps(self.key, ensure_ascii=False)}]"
        return f"{self.kind}.{self.name}{suffix}"

    def __lt__(self, other: Address) -> bool:  # type: ignore[override]
        return self.rank() < other.rank()

    def rank(self) -> tuple[int, str, str]:
        """Sort key; faster than comparing addresses."""
        return (_ORDER[self.kind], self.name, self.key or "")

    @property
    def group(self) -> Address:
        """The address without key: ``job.sweep``."""
        return Address(self.kind, self.name)

    @property
    def shell_quoted(self) -> str:
        """The address, quoted for a shell if necessary."""
        return str(self) if self.key is None else shlex.quote(str(self))

    @classmethod
    def read(cls, text: str) -> Address:
        """Parse an address typed by a user; raise ValueError if invalid.

        A name without a kind is a job's. The key may lack its quotes, which a shell may have removed.
        """
        kind = text.partition(".")[0]
        text = text if kind in _KINDS and kind != text else f"job.{text}"
        bare = _BARE.fullmatch(text)
        return cls.parse(f"{bare[1]}[{json.dumps(bare[2])}]" if bare else text)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; raise ValueError with the reason if invalid."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an address; use KIND.NAME, for example job.sft")
        kind = _KINDS.get(match["kind"])
        if kind is None:
            raise ValueError(f"unknown kind {match['kind']!r}; use one of {', '.join(Kind)}")
        try:
            key = None if match["key"] is None else json.loads(match["key"])
        except json.JSONDecodeError:
            raise ValueError(f"{text!r}: expected a quoted string in the brackets") from None
        return cls(kind, match["name"], key)


def external(resources: Mapping[Address, T]) -> dict[Address, T]:
    """Return the resources that exist outside of the state; of 100,000 projects none."""
    return {at: each for at, each in resources.items() if at.kind not in STATE_ONLY_KINDS}


def of_kind(resources: Mapping[Address, T], kind: Kind) -> list[T]:
    """Return the resources of a kind."""
    return [each for at, each in resources.items() if at.kind is kind]

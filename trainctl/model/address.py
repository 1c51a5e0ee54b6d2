"""Addresses: ``kind.name`` or ``kind.name["key"]``, the names of everything trainctl manages."""

from __future__ import annotations

import json
import re
import shlex
from enum import StrEnum
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a declared name may look like. It becomes a file name, so nothing else is let in."""

_ADDRESS = re.compile(
    rf"(?P<kind>[a-z]+)\.(?P<name>{NAME.pattern})(?:\[(?P<key>\".*\")\])?", re.DOTALL
)

_BARE = re.compile(r"([^\[]+)\[([^\"].*)\]", re.DOTALL)


class Kind(StrEnum):
    """The kinds of resources, in the order in which they are listed."""

    PROJECT = "project"
    CLUSTER = "cluster"
    NODE = "node"
    WEIGHTS = "weights"
    CACHE = "cache"
    JOB = "job"
    DEPLOYMENT = "deployment"

    __hash__ = str.__hash__  # Enum's own is written in Python; see Address


STATE_ONLY_KINDS = frozenset({Kind.PROJECT})
"""Kinds of which nothing is anywhere but in the state."""

_ORDER = {kind: position for position, kind in enumerate(Kind)}
_KINDS = {kind.value: kind for kind in Kind}


class Address(NamedTuple):
    """The name of one resource; ``key`` tells one of many, as in ``job.sweep["lr=1e-5"]``.

    A tuple, because addresses are looked up all the time and tuples hash and compare without running any Python.
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
        """What addresses are sorted by: ``sorted(addresses, key=Address.rank)`` is the same as without, and faster."""
        return (_ORDER[self.kind], self.name, self.key or "")

    @property
    def group(self) -> Address:
        """Of one of many, what they have in common: ``job.sweep``."""
        return Address(self.kind, self.name)

    @property
    def shell_quoted(self) -> str:
        """As it is typed in a shell."""
        return str(self) if self.key is None else shlex.quote(str(self))

    @classmethod
    def read(cls, text: str) -> Address:
        """An address as users type it, whose shell may have taken the quotes of its key; a name without a kind is a job's.

        ValueError as of ``parse``.
        """
        kind = text.partition(".")[0]
        text = text if kind in _KINDS and kind != text else f"job.{text}"
        bare = _BARE.fullmatch(text)
        return cls.parse(f"{bare[1]}[{json.dumps(bare[2])}]" if bare else text)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address as it is written; ValueError says what is wrong with it."""
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

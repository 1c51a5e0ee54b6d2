"""A mapping that hands out immutable copies of itself at the cost of what changed lately, not of what it holds."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Final, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

MERGE_AT = 256
"""How many changes lie over the base before both become a new base."""


class _Gone:
    """Stands in the upper layer for a key that the base has and the mapping hasn't."""


_GONE: Final = _Gone()


class Frozen(Mapping[K, V], Generic[K, V]):
    """A base that nobody changes any more, and the changes over it."""

    __slots__ = ("_base", "_length", "_over")

    def __init__(self, base: Mapping[K, V], over: Mapping[K, V | _Gone], length: int) -> None:
        self._base, self._over, self._length = base, over, length

    def __getitem__(self, key: K) -> V:
        value = self._over.get(key)
        if value is None:
            return self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return cast(V, value)

    def get(self, key: K, default: Any = None) -> Any:
        """As every mapping's, without an exception for what is absent: planning asks about everything several times."""
        value = self._over.get(key) if self._over else None
        if value is None:
            return self._base.get(key, default)
        return default if value is _GONE else value

    def __iter__(self) -> Iterator[K]:
        return iter(self._merged())

    def items(self) -> ItemsView[K, V]:
        """As every mapping's, at the cost of a dictionary's: whoever looks at each of thousands does it many times."""
        return self._merged().items()

    def values(self) -> ValuesView[V]:
        """Likewise."""
        return self._merged().values()

    def _merged(self) -> Mapping[K, V]:
        if not self._over:
            return self._base
        over = {key: cast(V, value) for key, value in self._over.items() if value is not _GONE}
        return {key: value for key, value in self._base.items() if key not in self._over} | over

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return repr(dict(self))


class Layers(MutableMapping[K, V], Generic[K, V]):
    """The mapping in the making. Values are never None."""

    def __init__(self, start: Mapping[K, V]) -> None:
        self._base: dict[K, V] = dict(start)
        self._over: dict[K, V | _Gone] = {}
        self._length = len(self._base)
        self._frozen: Frozen[K, V] | None = None

    def __getitem__(self, key: K) -> V:
        value = self._over.get(key)
        if value is None:
            return self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return cast(V, value)

    def __contains__(self, key: object) -> bool:
        value = self._over.get(cast(K, key))
        return key in self._base if value is None else value is not _GONE

    def get(self, key: K, default: Any = None) -> Any:
        """As every mapping's, without an exception for what is absent: folding asks for that all the time."""
        value = self._over.get(key)
        if value is None:
            return self._base.get(key, default)
        return default if value is _GONE else value

    def pop(self, key: K, default: Any = None) -> Any:
        """Take it out; the default if it isn't there."""
        value = self.get(key)
        if value is None:
            return default
        self._length -= 1
        self._change(key, _GONE)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            self._length += 1
        self._change(key, value)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._length -= 1
        self._change(key, _GONE)

    def __iter__(self) -> Iterator[K]:
        return iter(self.freeze())

    def __len__(self) -> int:
        return self._length

    def freeze(self) -> Frozen[K, V]:
        """What it holds now, for ever."""
        if self._frozen is None:
            self._frozen = Frozen(self._base, self._over.copy(), self._length)
        return self._frozen

    def _change(self, key: K, value: V | _Gone) -> None:
        if len(self._over) >= MERGE_AT:
            self._merge()
        self._over[key] = value
        self._frozen = None

    def _merge(self) -> None:
        base = self._base.copy()
        for key, value in self._over.items():
            if value is _GONE:
                base.pop(key, None)
            else:
                base[key] = cast(V, value)
        self._base, self._over = base, {}

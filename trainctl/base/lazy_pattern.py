"""Regular expressions of modules, compiled when they are first used.

A command imports some 100 of them and uses 10 to 20; to compile one takes a fifth of a millisecond.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any


class _LazyPattern:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        # Each method is looked up once, and then found without this.
        value = self.__dict__[name] = getattr(re.compile(*self._arguments), name)
        return value


if TYPE_CHECKING:
    compile_lazily = re.compile
else:
    compile_lazily = _LazyPattern

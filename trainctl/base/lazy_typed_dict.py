"""``typing.TypedDict`` whose annotations aren't evaluated when a class is made.

The standard one compiles every annotation at import: a command that imports the protocol would compile 350 of them, and
use none. Here they stay text, with those of the bases before them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Tuple


class LazyTypedDict(type):
    """The class of such types; calling one makes a ``dict``."""

    def __new__(
        cls, name: str, bases: Tuple[type, ...], namespace: Dict[str, Any], *, total: bool = True
    ) -> LazyTypedDict:
        own = namespace.get("__annotations__", {})
        annotations: Dict[str, str] = {}
        optional = set() if total else set(own)
        for base in bases:
            annotations.update(vars(base).get("__annotations__", {}))
            optional |= vars(base).get("__optional_keys__", frozenset())
        members = {"__annotations__": {**annotations, **own}, "__optional_keys__": optional}
        return type.__new__(cls, name, (dict,), {**namespace, **members})

    def __call__(cls, *args: Any, **keys: Any) -> Any:
        if cls.__name__ != "TypedDict":
            return dict(*args, **keys)
        name, fields = args  # the other form: TypedDict("Name", {"key": type})
        module = sys._getframe(1).f_globals["__name__"]
        namespace = {"__annotations__": fields, "__module__": module}
        return LazyTypedDict(name, (cls,), namespace, **keys)


if TYPE_CHECKING:
    from typing import TypedDict as TypedDict
else:
    TypedDict = type.__new__(LazyTypedDict, "TypedDict", (dict,), {})

"""Source URIs: grammar and parser of all schemes.

| scheme | text |
|---|---|
| hf | ``hf://OWNER/REPO[@REVISION]``, ``hf://datasets/OWNER/NAME[@REVISION]``, ``hf://buckets/OWNER/NAME[/PREFIX]`` |
| s3, gs | ``s3://BUCKET[/PREFIX]`` |
| r2 | ``r2://ACCOUNT.BUCKET[/PREFIX]`` |
| azure | ``azure://ACCOUNT/CONTAINER[/PREFIX]`` |
| https | ``https://HOST/PATH/NAME[?QUERY]``: one file, called NAME |
| file | ``file:./PATH`` (from the manifest's directory) or ``file:///PATH``: taken as written, no percent-decoding |

URIs with a user, password or signature are rejected, and not repeated in the error.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lazy_pattern import compile_lazily

SCHEMES = ("hf", "s3", "gs", "r2", "azure", "https", "file")
BUCKETS = ("s3", "gs", "r2", "azure")
"""Schemes of object stores; a source is a prefix."""

_HF_BUCKETS = "hf://buckets/"
_HF_NAME = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_HF_REVISION = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_BUCKET = (
    compile_lazily(r"[a-z0-9][a-z0-9._-]{2,221}"),
    "invalid bucket name",
    "BUCKET/PREFIX with a bucket of at least 3 lower-case letters, digits, '.', '-' and '_'",
)
_LOCATIONS = {
    "r2": (
        compile_lazily(r"[A-Za-z0-9]+\.[a-z0-9][a-z0-9.-]{2,62}"),
        "missing account ID or bucket",
        "ACCOUNT_ID.BUCKET/PREFIX",
    ),
    "azure": (
        compile_lazily(r"[a-z0-9]{3,24}/\$?[a-z0-9][a-z0-9-]{2,62}"),
        "missing account or container",
        "ACCOUNT/CONTAINER/PREFIX",
    ),
}
_USER = compile_lazily(r"(?:hf|https?|s3|gs|r2|azure):/*[^/]*@", re.IGNORECASE)
_SIGNATURE = compile_lazily(
    r"(^|[-_])(sig|signature|token|key|apikey|password|passwd|secret|credential|auth|jwt)$",
    re.IGNORECASE,
)
_UNPRINTABLE = compile_lazily(r"[\x00-\x20\x7f-\xa0]")
_NO_FILE_NAME = compile_lazily(r"\.{0,2}|.*[/\\\x00-\x1f\x7f-\x9f\u2028\u2029].*", re.DOTALL)
_LONGEST_NAME = 255
_QUERY = compile_lazily(r"\?[\w.-]+=")


@dataclass(frozen=True)
class SourceUri:
    """A parsed source.

    ``location`` is ``OWNER/REPO``, a bucket, ``ACCOUNT/CONTAINER``, a host, or for ``file`` the path. ``path`` is
    the prefix or file in it, without a leading ``/``. ``hub_type``: models, datasets or buckets, for ``hf`` only.
    """

    text: str
    scheme: str
    location: str
    path: str = ""
    revision: str | None = None
    hub_type: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine: untrusted plans and policies restrict those."""
        return self.scheme == "file"

    @property
    def has_commits(self) -> bool:
        """Whether its versions are commits of a Hub, which never change."""
        return self.hub_type in ("models", "datasets")

    @property
    def name(self) -> str:
        """Last segment of the path: the default name of its directory."""
        if self.scheme == "https":
            return _last_segment(self.path.partition("?")[0])
        full_path = f"{self.location}/{self.path}".rstrip("/")
        return Path(os.path.normpath(full_path)).name or self.scheme

    def within(self, directory: Path) -> SourceUri:
        """Make a relative ``file:`` path absolute; return other sources unchanged."""
        if not self.is_local or self.location.startswith("/"):
            return self
        path = os.path.normpath(directory.absolute() / self.location)
        return replace(self, text=f"file://{path}", location=path)


@lru_cache(maxsize=4096)  # a plan parses each source about ten times
def parse_source(text: str) -> SourceUri:
    """Parse a source; raise ValueError with the reason and a correction if invalid."""
    if _USER.match(text):
        raise ValueError(
            "the source contains a user or password; remove it, and name a secret in auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}"
        )
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in _PARSERS:
        raise ValueError(_unknown_scheme(text, scheme if colon else None))
    # Keys of objects may contain spaces.
    is_bucket = scheme in BUCKETS or text.startswith(_HF_BUCKETS)
    checked = text.replace(" ", "") if is_bucket else text
    if scheme != "file" and _UNPRINTABLE.search(checked):
        raise ValueError(f"{text!r} contains a space or a control character; remove it")
    if scheme == "file":
        return _file(text, rest)
    if not rest.startswith("//"):
        raise ValueError(f"missing // in {text!r}; use {scheme}://{rest.lstrip('/')}")
    return _PARSERS[scheme](text, rest[2:])


def _unknown_scheme(text: str, scheme: str | None) -> str:
    if scheme is None and text.startswith("~"):
        return _home_path_message(text)
    if scheme is None and text.startswith(("./", "../", "/")):
        fixed = f"file://{text}" if text.startswith("/") else f"file:{text}"
        return f"{text!r} is a path, not a source; use {fixed}"
    if scheme is None and text.count("/") == 1:
        return f"missing scheme in {text!r}; use hf://{text}"
    if scheme == "http":
        return "http:// sources are not supported, as they can be modified in transit; use https://HOST/PATH"
    if scheme in ("bdn", "bt"):
        what = "a volume" if scheme == "bdn" else "a checkpoint"
        return f"{text!r} is {what} of Baseten, which only that service reads; use the source that it was made from, or download it there and use file:./DIRECTORY"
    known = ", ".join(f"{name}://" for name in SCHEMES[:-1])
    problem = f"unsupported scheme {scheme!r}" if scheme else f"missing scheme in {text!r}"
    return f"{problem}; use one of {known} or file:./PATH"


def _hf(text: str, rest: str) -> SourceUri:
    if text.startswith(_HF_BUCKETS):
        owner, name, prefix = (*rest.split("/", 3)[1:], "", "")[:3]
        if not (_HF_NAME.fullmatch(owner) and _HF_NAME.fullmatch(name)):
            raise ValueError(
                f"{text!r} is not a bucket of the Hugging Face Hub; use {_HF_BUCKETS}OWNER/NAME[/PREFIX], without a revision"
            )
        _check_prefix(text, prefix)
        return SourceUri(text, "hf", f"{owner}/{name}", prefix, hub_type="buckets")
    dataset = rest.startswith("datasets/")
    path, at, revision = rest.partition("@")
    revision = revision.replace("%2F", "/")  # as huggingface_hub writes a branch
    shape = "hf://datasets/OWNER/NAME[@REVISION]" if dataset else "hf://OWNER/REPO[@REVISION]"
    owner, _, name = (path[len("datasets/") :] if dataset else path).partition("/")
    if "/" in name:
        meant = format_source(path.split("/"), revision)
        raise ValueError(f"{text!r} names more than a repository; use {meant}")
    if not (_HF_NAME.fullmatch(owner) and _HF_NAME.fullmatch(name)):
        raise ValueError(f"{text!r} is not a Hugging Face source; use {shape}")
    if at and (not _HF_REVISION.fullmatch(revision) or ".." in revision):
        raise ValueError(
            f"invalid branch, tag or commit after @ in {text!r}; use for example {shape.partition('[')[0]}@main"
        )
    hub_type = "datasets" if dataset else "models"
    return SourceUri(text, "hf", f"{owner}/{name}", "", revision or None, hub_type)


def _bucket(text: str, rest: str) -> SourceUri:
    scheme = text.partition(":")[0]
    location = "/".join(rest.split("/")[: 2 if scheme == "azure" else 1])
    prefix = rest[len(location) + 1 :]
    pattern, problem, usage = _LOCATIONS.get(scheme, _BUCKET)
    if not pattern.fullmatch(location):
        raise ValueError(f"{problem} in {text!r}; use {scheme}://{usage}")
    _check_prefix(text, prefix)
    return SourceUri(text, scheme, location, prefix)


def _check_prefix(text: str, prefix: str) -> None:
    """Reject prefixes that don't name exactly one directory."""
    parts = prefix[:-1].split("/") if prefix.endswith("/") else prefix.split("/")
    if prefix and not all(part not in ("", ".", "..") for part in parts):
        raise ValueError(f"the prefix of {text!r} contains an empty part, . or ..; remove it")
    if query := _QUERY.search(text):
        raise ValueError(
            f"{text!r} has a query; use {text[: query.start()]} (the version is pinned in trainctl.lock)"
        )
    directory, star, _ = text.partition("*")
    if star:
        directory = directory.rpartition("/")[0]
        pattern = text[len(directory) + 1 :]
        raise ValueError(
            f"the prefix of {text!r} contains *; use {directory} and allow_patterns: [{pattern!r}]"
        )


def _https(text: str, rest: str) -> SourceUri:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{text!r} is not a URL; use https://HOST/PATH") from None
    if any(_SIGNATURE.search(key) for key, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise ValueError(
            f"the URL on {host} contains a signature or token; remove it, and name a secret in auth"
        )
    words = [unquote(word) for word in parts.path.split("/")]
    repo, inside = _split_repository(words)
    if host in _HOSTS and repo and (not inside or inside[0] in _PAGES):
        raise ValueError(f"{text!r} is a web page, not a file; use {format_source(words)}")
    if not host or port == 0 or not parts.path.strip("/") or parts.path.endswith("/"):
        raise ValueError(f"{text!r} is not the URL of a file; use https://HOST/PATH")
    if parts.fragment:
        raise ValueError(f"{text!r} has a fragment; remove #{parts.fragment}")
    try:
        name = _last_segment(parts.path)
    except UnicodeDecodeError:
        name = ""
    if not is_file_name(name):
        raise ValueError(
            f"the path of {text!r} doesn't end in a valid file name; use https://HOST/PATH/NAME"
        )
    query = f"?{parts.query}" if parts.query else ""
    return SourceUri(text, "https", parts.netloc, parts.path.lstrip("/") + query)


def is_file_name(name: str) -> bool:
    """Return whether a text is the name of a file in a directory."""
    return not _NO_FILE_NAME.fullmatch(name) and len(name.encode()) <= _LONGEST_NAME


def _last_segment(path: str) -> str:
    return unquote(path.rpartition("/")[2], errors="strict")


def _home_path_message(text: str) -> str:
    return f"'~' is not expanded in {text!r}; use file:///PATH"


def _file(text: str, rest: str) -> SourceUri:
    if "\x00" in rest:
        raise ValueError(f"{text!r} contains a NUL character; remove it")
    if rest.startswith(("~", "//~")):
        raise ValueError(_home_path_message(text))
    if rest.startswith("//") and not rest.startswith("///"):
        inside = rest[2:]
        fixed = f"file:{inside}" if inside.startswith(".") else f"file:./{inside}"
        raise ValueError(
            f"{text!r} names a host; use {fixed} (relative to the manifest) or file:///{inside}"
        )
    path = rest[2:] if rest.startswith("//") else rest
    if not path.startswith(("/", "./", "../")) and path not in (".", ".."):
        raise ValueError(
            f"{text!r} is neither a relative nor an absolute path; use file:./{path or 'PATH'}"
        )
    return SourceUri(text, "file", os.path.normpath(path) if path != "." else ".")


_PARSERS: dict[str, Callable[[str, str], SourceUri]] = {
    "hf": _hf,
    **dict.fromkeys(BUCKETS, _bucket),
    "https": _https,
    "file": _file,
}


_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_PAGES = ("tree", "blob")
_VIEWS = (*_PAGES, "resolve", "raw")


def format_source(words: Sequence[str], revision: str = "") -> str:
    """Format ``[models|datasets|buckets,] OWNER, NAME[, VIEW, REVISION][, PATH…]`` as source."""
    repo, inside = _split_repository(words)
    if not repo:
        return "hf://OWNER/REPO[@REVISION]"
    if repo[0] == "buckets":
        inside = inside[1:] if inside[:1] and inside[0] in _VIEWS else inside
        return f"hf://{'/'.join([*repo, *inside])}"
    folder = inside[:1] == ["tree"]
    if inside[:1] and inside[0] in _VIEWS:
        revision, inside = "".join(inside[1:2]), inside[2:]
    source = f"hf://{'/'.join(repo)}" + (f"@{revision}" if revision not in ("", "main") else "")
    pattern = f"/{'/'.join(inside)}" + ("/" if folder else "")
    return f"{source} and allow_patterns: [{pattern!r}]" if inside else source


def _split_repository(path: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the segments of a repository and the rest; both may be empty."""
    words = [word for word in path if word]
    if len(words) > 2 and words[0] == "models":
        del words[0]
    size = 3 if words[:1] in (["datasets"], ["buckets"]) else 2
    is_repository = len(words) >= size and words[0] not in ("kernels", "spaces")
    return (words[:size], words[size:]) if is_repository else ([], [])

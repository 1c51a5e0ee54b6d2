from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainctl.model.source_uri import SourceUri, parse_source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://Qwen/Qwen3-0.6B", ("hf", "Qwen/Qwen3-0.6B", "", None, False)),
        ("hf://Qwen/Qwen3-0.6B@main", ("hf", "Qwen/Qwen3-0.6B", "", "main", False)),
        ("hf://a/b@refs/pr/1", ("hf", "a/b", "", "refs/pr/1", False)),
        ("hf://datasets/a/b@v1", ("hf", "a/b", "", "v1", True)),
        ("s3://bucket/pre/fix", ("s3", "bucket", "pre/fix", None, False)),
        ("s3://bucket/My Data/run 1", ("s3", "bucket", "My Data/run 1", None, False)),
        ("azure://account/box/a b", ("azure", "account/box", "a b", None, False)),
        ("gs://bucket", ("gs", "bucket", "", None, False)),
        ("r2://account.bucket/x", ("r2", "account.bucket", "x", None, False)),
        ("azure://account/container/x", ("azure", "account/container", "x", None, False)),
        ("https://host/a/b.bin?v=1", ("https", "host", "a/b.bin?v=1", None, False)),
        (
            "https://huggingface.co/a/b/resolve/main/c.bin",
            ("https", "huggingface.co", "a/b/resolve/main/c.bin", None, False),
        ),
        ("https://huggingface.com/a/b", ("https", "huggingface.com", "a/b", None, False)),
        ("file:./weights", ("file", "weights", "", None, False)),
        ("file:../weights/", ("file", "../weights", "", None, False)),
        ("file:///data/my%20model", ("file", "/data/my%20model", "", None, False)),
    ],
)
def test_every_scheme_is_read(text: str, expected: tuple[object, ...]) -> None:
    """Each form of the grammar is taken apart into what it says, and keeps its text."""
    found = parse_source(text)
    assert (found.scheme, found.location, found.path, found.revision, found.dataset) == expected
    assert str(found) == text


@pytest.mark.parametrize(
    ("text", "write"),
    [
        ("", "hf://"),
        ("./weights", "use file:./weights"),
        ("/data/weights", "use file:///data/weights"),
        ("Qwen/Qwen3", "use hf://Qwen/Qwen3"),
        ("http://host/x", "use https://"),
        ("ftp://host/x", "unsupported scheme 'ftp'"),
        ("hf:Qwen/Qwen3", "use hf://Qwen/Qwen3"),
        ("hf://gpt2", "use hf://OWNER/REPO"),
        ("hf://a/b/c/d.bin", "use hf://a/b and allow_patterns: ['/c/d.bin']"),
        ("hf://a/b@", "branch, tag or commit"),
        ("hf://a/b@../x", "branch, tag or commit"),
        ("hf://datasets/a", "use hf://datasets/OWNER/NAME"),
        ("hf://a/b\n", "control character"),
        ("s3://", "use s3://BUCKET/PREFIX"),
        ("r2://bucket/x", "use r2://ACCOUNT_ID.BUCKET"),
        ("azure://account", "use azure://ACCOUNT/CONTAINER"),
        ("https://host/", "use https://HOST/PATH"),
        ("https://host/dir/", "use https://HOST/PATH"),
        ("https://host/?file=x", "use https://HOST/PATH"),
        ("https://host/x#y", "remove #y"),
        ("https://host/..", "use https://HOST/PATH/NAME"),
        ("https://host/a%2Fb", "use https://HOST/PATH/NAME"),
        ("https://host/%2E%2E", "use https://HOST/PATH/NAME"),
        ("https://host/a%00b", "use https://HOST/PATH/NAME"),
        ("https://host/a%1B[31m", "use https://HOST/PATH/NAME"),
        ("https://host/a%5Cb", "use https://HOST/PATH/NAME"),
        ("https://host/%FF", "use https://HOST/PATH/NAME"),
        (f"https://host/{'x' * 256}", "use https://HOST/PATH/NAME"),
        ("https://huggingface.co/a/b", "is a web page, not a file; use hf://a/b"),
        ("https://huggingface.co/a/b/", "is a web page, not a file; use hf://a/b"),
        ("https://huggingface.co/a/b/tree/main", "is a web page, not a file; use hf://a/b"),
        ("https://www.huggingface.co/a/b/tree/refs%2Fpr%2F1", "use hf://a/b@refs/pr/1"),
        ("https://hf.co/a/b/tree/v1/c", "use hf://a/b@v1 and allow_patterns: ['/c/']"),
        (
            "https://huggingface.co/datasets/a/b/blob/main/c/d%20e.json?x=1",
            "use hf://datasets/a/b and allow_patterns: ['/c/d e.json']",
        ),
        ("hf://models/a/b", "more than a repository; use hf://a/b"),
        ("hf://spaces/a/b", "more than a repository; use hf://OWNER/REPO[@REVISION]"),
        ("hf://a/b/", "more than a repository; use hf://a/b"),
        ("hf://a/b/@v1", "use hf://a/b@v1"),
        ("hf://a/b/tree/v1", "use hf://a/b@v1"),
        ("hf://a/b/c.bin@v1", "use hf://a/b@v1 and allow_patterns: ['/c.bin']"),
        ("hf://a/b c", "contains a space"),
        ("https://host/a b", "contains a space"),
        ("s3://bu cket/x", "use s3://BUCKET/PREFIX"),
        ("s3://bucket/*.bin", "use s3://bucket and allow_patterns: ['*.bin']"),
        ("gs://bucket/a/b*/c.bin", "use gs://bucket/a and allow_patterns: ['b*/c.bin']"),
        ("s3://bucket/p?versionId=abc", "has a query; use s3://bucket/p"),
        ("https://host:0/x", "use https://HOST/PATH"),
        ("~/models", "; use file:///PATH"),
        ("~", "; use file:///PATH"),
        ("file:~/models", "; use file:///PATH"),
        ("file://~/models", "; use file:///PATH"),
        ("file:weights", "use file:./weights"),
        ("file://weights/x", "use file:./weights/x"),
        ("file:", "use file:./PATH"),
    ],
)
def test_what_is_no_source_says_what_to_write(text: str, write: str) -> None:
    """Each mistake is answered with what to write instead."""
    with pytest.raises(ValueError, match=re.escape(write)) as caught:
        parse_source(text)
    assert "['/']" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "hf://user:s3cr3tvalue@a/b",
        "hf://s3cr3tvalue@a/b",
        "https://s3cr3tvalue@host/x",
        "https://user:s3cr3tvalue@host/x",
        "s3://AKIA:s3cr3tvalue@bucket/x",
        "https://host/x?X-Amz-Signature=s3cr3tvalue",
        "https://host/x?sig=s3cr3tvalue",
        "https://host/x?access_token=s3cr3tvalue",
        "https://host/x?apikey=s3cr3tvalue",
    ],
)
def test_a_secret_in_a_source_is_refused_and_not_repeated(text: str) -> None:
    """A user, password or signature is pointed to auth, and its value is not in the error."""
    with pytest.raises(ValueError, match="auth") as caught:
        parse_source(text)
    assert "s3cr3tvalue" not in str(caught.value)


def test_a_relative_path_belongs_to_its_directory(tmp_path: Path) -> None:
    """``within`` makes a relative file source absolute, once, and touches no other."""
    inside = parse_source("file:./a/../b").within(tmp_path)
    assert inside.text == f"file://{tmp_path}/b"
    assert inside.within(Path("/elsewhere")) == inside
    assert parse_source("hf://a/b").within(tmp_path) == SourceUri("hf://a/b", "hf", "a/b")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf://a/b@main", "b"),
        ("s3://xyz/y/z/", "z"),
        ("file:///m/n", "n"),
        ("s3://bucket", "bucket"),
        ("https://host/a/model%20v1.bin?download=true", "model v1.bin"),
        ("https://host/get?id=3", "get"),
    ],
)
def test_the_name_is_the_last_word(text: str, name: str) -> None:
    """What a directory for the source is called."""
    assert parse_source(text).name == name

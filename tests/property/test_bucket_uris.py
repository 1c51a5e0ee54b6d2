"""Sources in buckets: what is taken means one place, and what is refused says what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.model.source_uri import parse_source
from trainctl.objects.location import parse_bucket_location

OWNERS = {
    "s3://": "my-bucket",
    "gs://": "my-bucket",
    "r2://": "0123abcd.my-bucket",
    "azure://": "account1/container",
}
SCHEMES = st.sampled_from(sorted(OWNERS))
PARTS = st.text(
    # What stands for a pattern or a query is an error, and all spaces but the plain one are.
    st.one_of(
        st.characters(categories=["L", "N", "P", "S"], exclude_characters="/*?"), st.just(" ")
    ),
    min_size=1,
    max_size=20,
).filter(lambda part: part not in (".", ".."))


@given(scheme=SCHEMES, parts=st.lists(PARTS, max_size=5), slash=st.booleans())
def test_a_prefix_is_taken_as_it_is_written(scheme: str, parts: list[str], slash: bool) -> None:
    """Nothing in it is decoded, folded or cut off, but the slash at its end; and the place's URL is the source again."""
    prefix = "/".join(parts)
    text = f"{scheme}{OWNERS[scheme]}" + (f"/{prefix}" if parts else "")
    place = parse_bucket_location(text + ("/" if slash else ""), None, {})
    assert (place.prefix, place.url) == (prefix, text)


@given(
    scheme=SCHEMES,
    parts=st.lists(st.one_of(PARTS, st.sampled_from(["", ".", ".."])), min_size=2, max_size=6),
)
def test_a_prefix_with_parts_that_mean_nothing_is_refused(scheme: str, parts: list[str]) -> None:
    """Empty parts, . and .. could each be read as another place than was meant; only one slash at the end is nothing."""
    text = f"{scheme}{OWNERS[scheme]}/{'/'.join(parts)}"
    inner = parts[:-1] if parts[-1] == "" else parts
    if all(part not in ("", ".", "..") for part in inner):
        assert parse_source(text).text == text
        return
    with pytest.raises(ValueError, match=r"contains an empty part, \. or \.\.; remove it"):
        parse_source(text)

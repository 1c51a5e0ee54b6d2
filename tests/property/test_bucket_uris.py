"""Sources in buckets: what is taken means one place, and what is refused says what to write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainctl.buckets.location import parse_bucket_location

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

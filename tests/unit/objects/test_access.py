"""What secrets hold: the service's forms, and the words for those that are wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.clouds import ACCOUNT, ACCOUNT_KEY, service_account
from trainctl.errors import SourceDenied
from trainctl.objects.credentials import (
    AwsKeys,
    AzureKey,
    AzurePrincipal,
    AzureSas,
    BearerToken,
    ServiceAccount,
    parse_credential,
    secret_values,
)

KEYS = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}


def test_an_access_key_with_what_goes_with_it() -> None:
    """Key and secret are needed; session and region may be there; others are not read."""
    more = {**KEYS, "aws_session_token": "session-value", "aws_region": "eu-west-1", "x": 1}
    assert parse_credential("s3", json.dumps(KEYS), "secret a") == AwsKeys(KEY_ID, SECRET)
    assert parse_credential("r2", json.dumps(more), "secret a") == AwsKeys(
        KEY_ID, SECRET, "session-value", "eu-west-1"
    )


def test_googles_key_is_taken_as_it_is() -> None:
    """The document of a service account, or a token that was exchanged for."""
    text = json.dumps(service_account())
    assert parse_credential("gs", text, "secret g") == ServiceAccount(text)
    assert parse_credential("gs", '{"access_token": "ya29.x"}', "secret g") == BearerToken("ya29.x")


def test_azures_forms() -> None:
    """A connection string, alone or in JSON; a key; a signature; a principal."""
    text = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint=http://127.0.0.1:1/x"
    key = AzureKey(ACCOUNT_KEY, ACCOUNT, "http://127.0.0.1:1/x")
    principal = {"tenant_id": "t", "client_id": "c", "client_secret": "value"}
    assert parse_credential("azure", text, "secret z") == key
    assert parse_credential("azure", json.dumps({"connection_string": text}), "secret z") == key
    assert parse_credential("azure", json.dumps({"account_key": ACCOUNT_KEY}), "z") == AzureKey(
        ACCOUNT_KEY
    )
    assert parse_credential("azure", '{"sas_token": "?sv=1&sig=x"}', "z") == AzureSas("sv=1&sig=x")
    assert parse_credential("azure", json.dumps(principal), "z") == AzurePrincipal(
        "t", "c", "value"
    )


@pytest.mark.parametrize(
    ("scheme", "text", "said"),
    [
        ("s3", "AKID:secret", "secret a is not JSON"),
        ("s3", "[]", "secret a is not a JSON object"),
        (
            "s3",
            '{"access_key_id": "AK", "secret_access_key": "s"}',
            "lacks 'aws_access_key_id' ('access_key_id' is ignored)",
        ),
        ("s3", '{"aws_access_key_id": "AK"}', "lacks 'aws_secret_access_key'"),
        *(
            ("s3", json.dumps({**KEYS, "aws_region": region}), "invalid 'aws_region'")
            for region in ("evil.example/#", "a b", "x@evil.example", "eu-west-1:1")
        ),
        (
            "s3",
            '{"aws_access_key_id": "AK", "AWS_SECRET_ACCESS_KEY": "s"}',
            "lacks 'aws_secret_access_key' ('AWS_SECRET_ACCESS_KEY' is ignored)",
        ),
        (
            "r2",
            '{"aws_access_key_id": "AK\\n", "aws_secret_access_key": "s"}',
            "contains 'aws_access_key_id', which is not valid text",
        ),
        (
            "s3",
            '{"aws_access_key_id": "AK", "aws_secret_access_key": 7}',
            "contains 'aws_secret_access_key', which is not valid text",
        ),
        ("gs", '{"type": "authorized_user"}', "is not a service account key"),
        ("gs", '{"type": "service_account", "client_email": "a"}', "lacks 'token_uri'"),
        ("azure", "some-key==", "is not a connection string"),
        ("azure", '{"key": "x"}', "lacks 'account_key'"),
        ("azure", '{"client_id": "c"}', "lacks 'tenant_id'"),
    ],
)
def test_a_wrong_secret_is_named_by_its_field(scheme: str, text: str, said: str) -> None:
    """The error names the secret, what is wrong, and the whole form."""
    with pytest.raises(SourceDenied) as caught:
        parse_credential(scheme, text, "secret a")
    assert caught.value.summary.startswith("secret a ")
    assert said in caught.value.summary
    assert f"For {scheme}://, set it to" in caught.value.detail
    assert caught.value.code == "unusable-secret"


VALUE = st.text("0123456789Zz~", min_size=12)


@given(
    scheme=st.sampled_from(["s3", "r2", "gs", "azure"]),
    names=st.lists(st.sampled_from([*KEYS, "account_key", "type", "x", "private_key"])),
    value=VALUE,
)
def test_no_error_and_no_form_shows_a_value(scheme: str, names: list[str], value: str) -> None:
    """Whatever members a secret has, what they hold is in no error, and in no text of what was read but the key's id."""
    text = json.dumps(dict.fromkeys(names, value))
    hidden: tuple[str, ...] = (value,)
    try:
        found = parse_credential(scheme, text, "secret a")
        shown, hidden = repr(found).replace(f"key_id={value!r}", ""), secret_values(found)
    except SourceDenied as error:
        shown = f"{error.summary} {error.detail}"
    assert value not in shown
    assert value in hidden


@given(value=VALUE, scheme=st.sampled_from(["s3", "r2", "gs", "azure"]))
def test_a_bare_value_is_not_shown_either(value: str, scheme: str) -> None:
    """A token where a document is expected is told to be none, and stays unsaid."""
    with pytest.raises(SourceDenied) as caught:
        parse_credential(scheme, value, "secret a")
    assert value not in f"{caught.value.summary} {caught.value.detail}"

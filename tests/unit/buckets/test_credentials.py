"""What secrets hold: the service's forms, and the words for those that are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.clouds import ACCOUNT, ACCOUNT_KEY, service_account
from trainctl.buckets.credentials import (
    AwsKeys,
    AzureKey,
    AzurePrincipal,
    AzureSas,
    BearerToken,
    ServiceAccount,
    parse_credential,
    secret_values,
)
from trainctl.errors import SourceDenied

KEYS = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}


def test_every_form_of_a_secret_is_parsed() -> None:
    """Unknown members are ignored; a connection string may be bare or in JSON."""
    more = {**KEYS, "aws_session_token": "session-value", "aws_region": "eu-west-1", "x": 1}
    session = AwsKeys(KEY_ID, SECRET, "session-value", "eu-west-1")
    assert parse_credential("s3", json.dumps(KEYS), "secret a") == AwsKeys(KEY_ID, SECRET)
    assert parse_credential("r2", json.dumps(more), "secret a") == session
    account = json.dumps(service_account())
    assert parse_credential("gs", account, "secret g") == ServiceAccount(account, "demo")
    assert parse_credential("gs", '{"access_token": "ya29.x"}', "secret g") == BearerToken("ya29.x")
    text = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint=http://127.0.0.1:1/x"
    key = AzureKey(ACCOUNT_KEY, ACCOUNT, "http://127.0.0.1:1/x")
    for document, credential in (
        ({"connection_string": text}, key),
        ({"account_key": ACCOUNT_KEY}, AzureKey(ACCOUNT_KEY)),
        ({"sas_token": "?sv=1&sig=x"}, AzureSas("sv=1&sig=x")),
        (
            {"tenant_id": "t", "client_id": "c", "client_secret": "value"},
            AzurePrincipal("t", "c", "value"),
        ),
    ):
        assert parse_credential("azure", json.dumps(document), "secret z") == credential
    assert parse_credential("azure", text, "secret z") == key


@pytest.mark.parametrize("case", cases("sources/invalid_credentials"))
def test_an_invalid_secret_is_an_error(case: dict[str, Any]) -> None:
    secret = case["secret"]
    text = secret if isinstance(secret, str) else json.dumps(secret)
    with pytest.raises(SourceDenied) as caught:
        parse_credential(case["scheme"], text, "secret a")
    assert caught.value.summary.startswith("secret a ")
    assert case["error"] in caught.value.summary
    assert f"For {case['scheme']}://, set it to" in caught.value.detail
    assert caught.value.code == "unusable-secret"


VALUE = st.text("0123456789Zz~", min_size=12)


@given(
    scheme=st.sampled_from(["s3", "r2", "gs", "azure"]),
    names=st.lists(st.sampled_from([*KEYS, "account_key", "type", "x", "private_key"])),
    value=VALUE,
    is_bare=st.booleans(),
)
def test_no_error_and_no_representation_shows_a_value(
    scheme: str, names: list[str], value: str, is_bare: bool
) -> None:
    """Only the id of a key is shown."""
    text = value if is_bare else json.dumps(dict.fromkeys(names, value))
    hidden: tuple[str, ...] = (value,)
    try:
        credential = parse_credential(scheme, text, "secret a")
        shown, hidden = repr(credential).replace(f"key_id={value!r}", ""), secret_values(credential)
    except SourceDenied as error:
        shown = f"{error.summary} {error.detail}"
    assert value not in shown
    assert value in hidden

"""Which secrets a login to a registry uses."""

from __future__ import annotations

from trainctl.jobs.registry import registry_secrets


def test_the_secrets_of_a_login_are_found() -> None:
    """In any of its blocks; other values, other mappings and blocks that are absent name none."""
    auth = {
        "auth_method": "AWS_IAM",
        "registry": "ghcr.io",
        "aws_oidc_docker_auth": None,
        "aws_iam_docker_auth": {
            "access_key_secret_ref": {"secret": "id"},
            "secret_access_key_secret_ref": {"secret": "key"},
            "session_name": "secret",
            "labels": {"team": "a"},
        },
    }

    assert registry_secrets(auth) == ("id", "key")

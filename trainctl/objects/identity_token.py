"""Identity tokens (OIDC) of the environment that trainctl runs in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from trainctl.base.certificates import trusting
from trainctl.errors import SourceDenied, SourceUnreachable
from trainctl.objects.token_requests import SILENCE_SECONDS


def identity_token(audience: str, variable: str, environ: Mapping[str, str]) -> str:
    """The token in the file that ``variable`` names, else that of GitHub Actions. SourceDenied if there is neither."""
    if path := environ.get(variable):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SourceDenied(
                f"cannot read an identity token from {path}, which {variable} names",
                "Name the file that your platform keeps the identity token in.",
                code="missing-secret",
            ) from None
    url, token = (environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{part}") for part in ("URL", "TOKEN"))
    if url and token:
        return _github_token(f"{url}&audience={quote(audience, safe='')}", token)
    raise SourceDenied(
        "no identity token found",
        f"Set {variable} to the file that holds one, or in GitHub Actions give the job `permissions: {{id-token: write}}`.",
        code="missing-secret",
    )


def _github_token(url: str, token: str) -> str:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Refuse: the next server would get the token."""

    by_tls = urllib.request.HTTPSHandler(context=trusting())
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the environment's
    try:
        opener = urllib.request.build_opener(NoRedirect, by_tls)
        with opener.open(request, timeout=SILENCE_SECONDS) as answer:
            return str(json.loads(answer.read(2**20))["value"])
    except urllib.error.HTTPError as error:
        error.close()
        raise SourceDenied(
            f"GitHub Actions refused an identity token (status {error.code})",
            "Give the job `permissions: {id-token: write}`.",
        ) from None
    except OSError:
        raise SourceUnreachable(
            "GitHub Actions is unreachable for an identity token", "Check the network."
        ) from None
    except (ValueError, LookupError, TypeError):
        raise SourceDenied("GitHub Actions returned no identity token") from None

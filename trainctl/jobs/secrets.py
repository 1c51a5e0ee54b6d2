"""Values of declared secrets: read when used, registered for redaction at once, never kept anywhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainctl.desired.values import SecretSpec
from trainctl.errors import Forbidden, TrainctlError
from trainctl.jobs.bucket_credentials import declared, masked, untrusted, usual
from trainctl.jobs.registry import Login, registry_login
from trainctl.manifest.tokens import sounds_secret
from trainctl.model.redaction import Redactor
from trainctl.model.source_uri import parse_source
from trainctl.objects.place import SCHEMES
from trainctl.spi.sources import Credential

SHORTEST = 8
"""Characters below which a value can't be masked without masking ordinary words."""


class Secrets:
    """Hands out the values that a manifest's ``secrets`` refer to."""

    def __init__(
        self,
        specs: Mapping[str, SecretSpec],
        directory: Path,
        environ: Mapping[str, str],
        redactor: Redactor,
    ) -> None:
        self._specs = specs
        self._directory = directory
        self._environ = environ
        self._redactor = redactor

    def register(self, value: str) -> str:
        """Mask a credential that this process made, from its birth on."""
        return self._redactor.register(value)

    def value(self, name: str) -> str:
        """The value of a declared secret; TrainctlError says where it was looked for."""
        spec = self._specs.get(name)
        if spec is None:
            raise TrainctlError(
                f"secret {name!r} is not declared",
                f"Add it under `secrets:`, as `{name}: {{from: env}}`.",
                code="undeclared-name",
            )
        value = self._from_env(spec) if spec.origin == "env" else self._from_file(spec)
        if "\0" in value:
            raise TrainctlError(
                f"secret {name!r} holds a NUL character",
                "No variable can hold it; keep such a value in base64.",
                code="unusable-secret",
            )
        if not spec.redact:
            return value
        if len(value.strip()) < SHORTEST:
            raise TrainctlError(
                f"secret {name!r} has fewer than {SHORTEST} characters",
                "It could not be masked in output. Use a longer value, or declare `redact: false`.",
                code="short-secret",
            )
        for part in _members(value):
            self._redactor.register(part)
        return self._redactor.register(value)

    def files(self) -> tuple[Path, ...]:
        """The files that secrets are read from: they are never code."""
        return tuple(self._path(spec) for spec in self._specs.values() if spec.origin == "file")

    def register_known(self) -> None:
        """Register every value that can be read now, so that whatever is shown from now on is masked."""
        for name in self._specs:
            try:
                self.value(name)
            except TrainctlError:
                continue  # reported where the value is used

    def declared_credential(self, attributes: Mapping[str, Any]) -> Credential | None:
        """What opens a weights source by its own ``auth``; None where it declares none.

        Forbidden for a host that only the manifest names: whoever wrote it could have any secret sent anywhere.
        """
        auth = attributes.get("auth")
        if not auth:
            return None
        source = parse_source(str(attributes["source"]))
        if source.scheme in SCHEMES:
            return self._of_bucket(attributes)
        if source.scheme == "https":
            raise untrusted(auth, source.location)
        name = auth["auth_secret_name"]
        return _checked(Credential(self.value(name).strip(), f"secret {name}"))

    def usual_credential(self, attributes: Mapping[str, Any]) -> Credential | None:
        """What opens a bucket by what lies in its platform's usual places; it is sent to no host that only the manifest names."""
        return masked(usual(attributes, self._environ), attributes, self._mask)

    def _of_bucket(self, attributes: Mapping[str, Any]) -> Credential | None:
        return masked(declared(attributes, self.value, self._environ), attributes, self._mask)

    def _mask(self, value: str) -> None:
        for part in (value, *_members(value)):
            self._redactor.register(part)

    def registry_login(self, image: Mapping[str, Any]) -> Login | None:
        """Who asks the registry for an image; None where it declares nobody."""
        return registry_login(image, self.value, self._redactor)

    def registered(self, credential: Credential | None) -> Credential | None:
        """A credential that was found elsewhere, masked from now on. One too short to be masked is no real token."""
        if credential is None:
            return None
        if len(credential.value) >= SHORTEST:
            self._redactor.register(credential.value)
        return _checked(credential)

    def _from_env(self, spec: SecretSpec) -> str:
        value = self._environ.get(spec.source)
        if not value:
            raise TrainctlError(
                f"secret {spec.name!r}: the environment variable {spec.source} is not set",
                f"Set it where trainctl runs: export {spec.source}=…",
                code="missing-secret",
            )
        return value

    def _from_file(self, spec: SecretSpec) -> str:
        path = self._path(spec)
        if not path.is_relative_to(self._directory.resolve()):
            raise Forbidden(
                f"secret {spec.name!r} names a file outside the manifest's directory",
                "Keep it beside the manifest (and out of git), or pass it through the environment: {from: env}.",
                code="secret-outside",
            )
        try:
            return path.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise TrainctlError(
                f"secret {spec.name!r}: {spec.source} can't be read: {error.strerror}",
                "Write the value there, or take it from elsewhere.",
                code="missing-secret",
            ) from None
        except UnicodeDecodeError:
            raise TrainctlError(
                f"secret {spec.name!r}: {spec.source} is not UTF-8 text", code="unusable-secret"
            ) from None

    def _path(self, spec: SecretSpec) -> Path:
        return (self._directory / spec.source).resolve()


def _checked(credential: Credential) -> Credential:
    """TrainctlError for what no header can hold: the library that would refuse it repeats it in its message."""
    value = credential.value
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise TrainctlError(
            f"{credential.origin} is no token: it holds a space, a line break or a character outside ASCII",
            "It must hold the token and nothing else.",
            code="unusable-secret",
        )
    return credential


def _members(value: str) -> Iterator[str]:
    """Of a secret that is a JSON object, what lies under names such as ``secret_access_key``: it may leak by itself.

    A key's id is no secret: it stands in every URL that was signed with the key.
    """
    try:
        document = json.loads(value) if value.lstrip().startswith("{") else {}
    except ValueError:
        return
    pending = [document]
    while pending:
        for name, member in pending.pop().items():
            if isinstance(member, dict):
                pending.append(member)
            elif (
                isinstance(member, str)
                and len(member) >= SHORTEST
                and sounds_secret(name)
                and not name.endswith("_id")
            ):
                yield member

"""Values of declared secrets: read when used, registered for redaction at once, never kept anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainctl.desired.values import SecretSpec
from trainctl.errors import Forbidden, TrainctlError
from trainctl.model.redaction import Redactor
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

    def value(self, name: str) -> str:
        """The value of a declared secret; TrainctlError says where it was looked for."""
        spec = self._specs.get(name)
        if spec is None:
            raise TrainctlError(
                f"secret {name!r} is not declared",
                f"Add it under `secrets:`, as `{name}: {{from: env}}`.",
            )
        value = self._from_env(spec) if spec.origin == "env" else self._from_file(spec)
        if not spec.redact:
            return value
        if len(value) < SHORTEST:
            raise TrainctlError(
                f"secret {name!r} has fewer than {SHORTEST} characters",
                "It could not be masked in output. Use a longer value, or declare `redact: false`.",
            )
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
        """What opens a weights source by its own ``auth``; None where it declares none."""
        auth = attributes.get("auth")
        if not auth:
            return None
        name = auth["auth_secret_name"]
        return Credential(self.value(name).strip(), f"secret {name}")

    def registered(self, credential: Credential | None) -> Credential | None:
        """A credential that was found elsewhere, masked from now on."""
        if credential is not None:
            self._redactor.register(credential.value)
        return credential

    def _from_env(self, spec: SecretSpec) -> str:
        value = self._environ.get(spec.source)
        if not value:
            raise TrainctlError(
                f"secret {spec.name!r}: the environment variable {spec.source} is not set",
                f"Set it where trainctl runs: export {spec.source}=…",
            )
        return value

    def _from_file(self, spec: SecretSpec) -> str:
        path = self._path(spec)
        if not path.is_relative_to(self._directory.resolve()):
            raise Forbidden(
                f"secret {spec.name!r} names a file outside the manifest's directory",
                "Keep it beside the manifest (and out of git), or pass it through the environment: {from: env}.",
            )
        try:
            return path.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise TrainctlError(
                f"secret {spec.name!r}: {spec.source} can't be read: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise TrainctlError(f"secret {spec.name!r}: {spec.source} is not UTF-8 text") from None

    def _path(self, spec: SecretSpec) -> Path:
        return (self._directory / spec.source).resolve()

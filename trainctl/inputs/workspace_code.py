"""Source code from several directories: ``workspace`` of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainctl.errors import TrainctlError
from trainctl.inputs.code import CodeFile, CodeSource, code_directory, scan
from trainctl.model.specs.job_spec import CodeSpec


def scan_code(directory: Path, code: CodeSpec, reserved: Sequence[Path] = ()) -> CodeSource:
    """List the files of a job's code; those of external directories are in a directory of their name."""
    root = (directory / code.path).resolve()
    skipped = [_child(directory, path, root) for path in code.exclude_dirs]
    source = scan(directory, code.path, reserved, skipped=skipped)
    external: dict[str, Path] = {}
    files, excluded = list(source.files), list(source.excluded)
    for path in code.external_dirs:
        place = (directory / path).resolve()
        if place.is_relative_to(root):
            continue  # already in the code
        name = place.name
        if name in external or ((root / name).exists() and name not in skipped):
            raise _invalid(f"external_dirs: the code has {name!r} already", path)
        inner = scan(directory, path, reserved)
        external[name] = inner.root
        files += _below(name, inner.files)
        excluded += [f"{name}/{file}" for file in inner.excluded]
    files.sort(key=lambda file: file.path)
    return replace(source, files=tuple(files), excluded=tuple(excluded), external=external)


def check_code(directory: Path, code: CodeSpec) -> None:
    """Raise TrainctlError if a directory of the code can't be part of it; read no files."""
    root = code_directory(directory, code.path)
    for path in code.exclude_dirs:
        _child(directory, path, root)
    for path in code.external_dirs:
        code_directory(directory, path)


def _below(name: str, files: Sequence[CodeFile]) -> Iterator[CodeFile]:
    return (replace(file, path=f"{name}/{file.path}") for file in files)


def _child(directory: Path, path: str, root: Path) -> str:
    place = (directory / path).resolve()
    if place.parent != root:
        raise _invalid(f"exclude_dirs: {path} is not directly in the code directory", path)
    return place.name


def _invalid(summary: str, path: str) -> TrainctlError:
    detail = f"Rename or remove {path}. To exclude other files, use .trainctlignore."
    return TrainctlError(summary, detail, code="invalid-workspace")

"""``depends_on``: which jobs a job follows, and that none follows itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainctl.desired.scope import Names
from trainctl.manifest.nearest import did_you_mean
from trainctl.manifest.tree import Path
from trainctl.manifest.types.job import Job
from trainctl.model.address import Address, Kind
from trainctl.model.circle import circle
from trainctl.model.diagnostics import Diagnostic, error


def followed(
    entries: list[str], path: Path, names: Names, of_matrix: Mapping[str, list[Address]]
) -> list[Address]:
    """The jobs that entries name; the name of a job with a matrix means all of its jobs."""
    found: list[Address] = []
    for at, text in enumerate(entries):
        here = (*path, "depends_on", at)
        address = _job(text)
        if address is None:
            names.complain(
                f"depends_on: {text!r} is not the address of a job",
                "Write job.NAME. What a job reads, such as weights, it depends on by itself.",
                here,
                code="invalid-dependency",
            )
        elif names.known("job", address.name, here):
            all_jobs = of_matrix.get(address.name)
            if address.key is None:
                found += all_jobs or [address]
            elif address in (all_jobs or ()):
                found.append(address)
            else:
                hint = did_you_mean(str(address), [str(one) for one in all_jobs or ()])
                names.complain(
                    f"depends_on: there is no {address}", hint, here, code="undeclared-name"
                )
    return found


def circles(jobs: Mapping[str, Job], names: Names) -> Iterator[Diagnostic]:
    """An error for each job that follows itself, with the way round; jobs of one matrix are one here."""
    places: dict[str, Path] = {}
    edges: dict[str, list[str]] = {}
    for tree_key, job in jobs.items():
        name = tree_key.partition("[")[0]
        places.setdefault(name, ("jobs", tree_key, "depends_on"))
        needed = (_job(text) for text in job.depends_on)
        edges.setdefault(name, []).extend(one.name for one in needed if one is not None)
    done: set[str] = set()
    for name in edges:
        way = circle(name, edges, done)
        if way:
            steps = " \u2192 ".join(f"job.{one}" for one in way)
            yield error(
                f"depends_on goes in a circle: {steps}",
                "A job can't wait for itself. Take out one of these.",
                address=f"job.{way[0]}",
                where=names.place(places[way[0]]),
                code="dependency-circle",
            )


def _job(text: str) -> Address | None:
    try:
        address = Address.parse(text)
    except ValueError:
        return None
    return address if address.kind is Kind.JOB else None

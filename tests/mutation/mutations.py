"""Faults made by hand: in which file what text becomes which, and the tests that should notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """``old`` is in the file once."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutations(folder: str, tests: tuple[str, ...], *rows: tuple[str, str, str]) -> list[Mutation]:
    return [Mutation(f"{folder}/{name}", old, new, tests) for name, old, new in rows]


_PLAN = ("tests/unit/plan", "tests/property/test_planner.py")
_LEDGER = ("tests/unit/ledger", "tests/property/test_ledger_fold.py")
_STORE = ("tests/unit/store", "tests/conformance/store")
_CACHE = ("tests/unit/node", "tests/property/test_node_cache_machine.py")

MUTATIONS = [
    *_mutations(
        "trainctl/plan",
        _PLAN,
        ("caches.py", "others > 1", "others > 0"),
        ("caches.py", "if not facts.ours:", "if facts.ours:"),
        ("caches.py", "if moved and must_stay:", "if must_stay:"),
        (
            "caches.py",
            "if facts is not None and facts.is_complete and not",
            "if facts is not None and not",
        ),
        ("graph.py", "waits[needed].add(address)", "waits[address].add(needed)"),
        (
            "graph.py",
            "closure(options.excludes, reverse(dependencies))",
            "closure(options.excludes, dependencies)",
        ),
        ("graph.py", "if options.refresh_only:", "if False:"),
        ("validation/hosts.py", "if mount.read_only and not", "if not"),
        (
            "transfers/disk_space.py",
            "facts.weights_space_max is not None and total <= facts.weights_space_max",
            "True",
        ),
        ("transfers/disk_space.py", "together > available_space(facts)", "False"),
        ("placement.py", "-offer.bytes_there", "offer.bytes_there"),
        ("placement.py", "total > space_max", "total >= space_max"),
        ("diff.py", '"after": plain(change.after),', ""),
        ("validation/checks.py", "if not any(fnmatch", "if not all(fnmatch"),
    ),
    *_mutations(
        "trainctl/ledger",
        _LEDGER,
        ("reducer.py", "generation < known_generation", "generation > known_generation"),
        ("reducer.py", "if entry.id in self._by_id:\n            return False", ""),
        ("reducer.py", "None if entry.waits else intent", "intent"),
        ("reducer.py", "        self.serial += 1\n", ""),
        ("reducer.py", "replace(intent, released=True)", "intent"),
        ("leases.py", "return not self._knows(intent.id)", "return False"),
        ("leases.py", "if is_dead(intent.holder):", "if False:"),
        ("leases.py", "now - lease.since >= lease.intent.lease_seconds", "now < lease.since"),
        ("commit.py", "if entry_id(entries[0]) in self._head.catch_up():", "if False:"),
    ),
    *_mutations(
        "trainctl/apply",
        ("tests/unit/apply",),
        ("engine.py", "if not permit.allows(change):", "if False:"),
        ("engine.py", "elif not isinstance(error, NodeUnreachable | UserInterrupt):", "else:"),
        ("engine.py", "if attempt.key != intent.key:", "if True:"),
        (
            "engine.py",
            "change.reason is not ActionReason.BY_REQUEST and has_same_effect",
            "has_same_effect",
        ),
        ("engine.py", "waits=not step.resumed", "waits=True"),
        ("walk.py", "limit - len(self._running)", "limit"),
        ("walk.py", "                    pending.append(dependant)", "                    pass"),
        ("walk.py", "if self.done or self.left_alone or self.deferred:", "if self.done:"),
    ),
    *_mutations(
        "trainctl/store",
        _STORE,
        ("maintenance/gc.py", "if access.writers:", "if False:"),
        ("maintenance/gc.py", "if stat.modified <= since", "if True"),
        ("maintenance/gc.py", " and digest not in live.packs:", ":"),
        ("maintenance/gc.py", "live.chunked.add(bytes.fromhex(file.sha256))", "pass"),
        ("maintenance/verify.py", "            if is_data_intact:", "            if True:"),
        ("lease.py", "if read_live(self._objects, self._key, liveness) is not None:", "if False:"),
        ("ingestion/chunk_writer.py", "or sha256_of(data) != sha256", ""),
        ("ingestion/upstream.py", 'digest.update(b"blob %d\\0" % file.size)', "pass"),
    ),
    *_mutations(
        "trainctl",
        _CACHE,
        ("node/system/blob_files.py", "return digest.hexdigest() == chunk.sha256", "return True"),
        ("node/cache/trees.py", "return is_stamped(entry, file) and (", "return ("),
        (
            "node/cache/leases.py",
            'if status is not None and status["status"] in {*ENDED, LOST}:',
            "if False:",
        ),
        ("node/cache/leases.py", "if key and NodeRun(self._layout, key).spec is None:", "if key:"),
        ("node/transfer/transfer_units.py", "(number & 7)", "(number & 3)"),
        ("node/transfer/transfer_units.py", "len(batch) >= _BATCH_MAX_FILES", "False"),
        (
            "node/transfer/fetch.py",
            "MIRROR if file.sha256 in self._fetched_to_shared else SHARED",
            "SHARED",
        ),
        (
            "node/transfer/object_readers.py",
            "if done < len(view):\n                raise",
            "if False:\n                raise",
        ),
        ("node/transfer/object_readers.py", "offset + done, view[done:]", "offset, view[done:]"),
    ),
    *_mutations(
        "trainctl",
        ("tests/unit/jobs", "tests/unit/model"),
        ("model/redaction.py", "(-len(text), text)", "(len(text), text)"),
        ("model/redaction.py", "        quote_plus(value),\n", ""),
        ("model/redaction.py", "min(len(value) - 1, len(text))", "min(len(value) - 2, len(text))"),
        ("model/redaction.py", "repr(value)[1:-1],", ""),
        ("jobs/secrets.py", "if not (value.isascii() and value.isprintable()) or", "if False and"),
        (
            "jobs/secrets.py",
            "if len(value.strip()) < MIN_MASKED_LENGTH:",
            "if len(value) < MIN_MASKED_LENGTH:",
        ),
        ("jobs/secrets.py", "self._trust().require_host(name, to)", "pass"),
        ("jobs/secrets.py", 'and not name.endswith("_id")', ""),
        ("jobs/images/registry.py", "username and colon and password", "username and colon"),
        (
            "jobs/images/registry.py",
            "match = ECR_REGISTRY.fullmatch(",
            "match = ECR_REGISTRY.match(",
        ),
        ("jobs/images/registry.py", "redactor.register(password)", "pass"),
    ),
    *_mutations(
        "providers/trainctl_ssh",
        ("tests/unit/ssh",),
        ("settings.py", "1024 <= int(first) <= int(last)", "int(first) <= int(last)"),
        ("settings.py", "if colon and port.isdigit():", "if colon:"),
        ("settings.py", " and blob[4 : 4 + len(kind)] == kind.encode()", ""),
        ("hosts.py", ">= (3, 8)", ">= (3, 7)"),
        ("hosts.py", 'if directory.startswith("~/")', "if True"),
        ("hosts.py", "cannot inspect its files", "is well"),
        ("provider.py", 'if not response["made"]:', "if False:"),
        ("provider.py", "if not nodes and errors:", "if errors:"),
        ("shell.py", 'word.split("\\n")', "[word]"),
        ("shell.py", "longest = min(len(self._token) - 1", "longest = min(len(self._token) - 3"),
    ),
]

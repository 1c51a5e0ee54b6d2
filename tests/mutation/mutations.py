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
        (
            "changes.py",
            "waits.setdefault(needed, set()).add(address)",
            "waits.setdefault(address, set()).add(needed)",
        ),
        (
            "changes.py",
            "closure(options.excludes, reverse(dependencies))",
            "closure(options.excludes, dependencies)",
        ),
        ("changes.py", "if options.refresh_only:", "if False:"),
        ("checks.py", "if mount.read_only and not", "if not"),
        ("deliveries.py", "if most is None or total > most:", "if False:"),
        ("deliveries.py", "together > available_space(facts)", "False"),
        ("placement.py", "-offer.bytes_there", "offer.bytes_there"),
        ("placement.py", "total > most", "total >= most"),
        ("changes.py", '"after": plain(change.after),', ""),
        ("policies.py", "return any(fnmatch", "return all(fnmatch"),
    ),
    *_mutations(
        "trainctl/ledger",
        _LEDGER,
        ("reducer.py", "generations[0] < generations[1]", "generations[0] > generations[1]"),
        ("reducer.py", "if entry.id in self._by_id:\n            return False", ""),
        ("reducer.py", "None if entry.waits else intent", "intent"),
        ("reducer.py", "version + 1\n        self.serial += 1\n", "version + 1\n"),
        ("reducer.py", "replace(intent, released=True)", "intent"),
        ("leases.py", "return not self._knows(intent.id)", "return False"),
        ("leases.py", "if is_dead(intent.holder):", "if False:"),
        ("ledger.py", "now - lease.since >= lease.intent.lease_seconds", "now < lease.since"),
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
        (
            "walk.py",
            "if len(self.done) > len(self.by_others) or self.left_alone or self.deferred:",
            "if self.done:",
        ),
    ),
    *_mutations(
        "trainctl/store",
        _STORE,
        ("gc.py", "if access.writers:", "if False:"),
        ("gc.py", "if stat.modified <= since", "if True"),
        ("gc.py", " and digest not in live.packs:", ":"),
        ("gc.py", "live.chunked.add(bytes.fromhex(file.sha256))", "pass"),
        ("verify.py", "            if is_data_intact:", "            if True:"),
        (
            "lease.py",
            "if not is_mine and read_live(self._objects, self._key, liveness) is None:",
            "if not is_mine:",
        ),
        ("writers.py", "and sha256_of(data) == sha256", ""),
        ("file_hash.py", 'self.upstream.update(b"blob %d\\0" % file.size)', "pass"),
    ),
    *_mutations(
        "trainctl",
        _CACHE,
        ("node/system/blob_files.py", "return digest.hexdigest() == chunk.sha256", "return True"),
        ("node/cache/listings.py", "return is_stamped(entry, file) and (", "return ("),
        (
            "node/cache/holds.py",
            'if status is not None and status["status"] in {*ENDED, LOST}:',
            "if False:",
        ),
        ("node/cache/holds.py", "if key and NodeRun(self._layout, key).spec is None:", "if key:"),
        ("node/transfer/fetch_pool.py", "(number & 7)", "(number & 3)"),
        ("node/transfer/fetch_pool.py", "len(batch) >= _BATCH_MAX_FILES", "False"),
        (
            "node/transfer/fetch.py",
            "source == SHARED and file.sha256 not in self._fetched_to_shared",
            "source == SHARED",
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
        ("tests/unit/secrets", "tests/unit/inputs", "tests/unit/model"),
        ("model/redaction.py", "(-len(text), text)", "(len(text), text)"),
        ("model/redaction.py", "                quote_plus(text),\n", ""),
        ("model/redaction.py", "min(len(value) - 1, len(text))", "min(len(value) - 2, len(text))"),
        ("model/redaction.py", "repr(text)[1:-1],", ""),
        (
            "secrets/resolver.py",
            "if not (value.isascii() and value.isprintable()) or",
            "if False and",
        ),
        (
            "secrets/resolver.py",
            "if len(value.strip()) < MIN_MASKED_LENGTH:",
            "if len(value) < MIN_MASKED_LENGTH:",
        ),
        ("secrets/resolver.py", "self._trust().require_host(name, to)", "pass"),
        ("secrets/resolver.py", 'and not name.endswith("_id")', ""),
        ("secrets/registries.py", "username and colon and password", "username and colon"),
        (
            "secrets/registries.py",
            "match = ECR_REGISTRY.fullmatch(",
            "match = ECR_REGISTRY.match(",
        ),
        ("secrets/registries.py", "mask(password)", "pass"),
    ),
    *_mutations(
        "providers/trainctl_ssh",
        ("tests/unit/ssh",),
        ("hosts.py", "1024 <= int(first) <= int(last)", "int(first) <= int(last)"),
        ("hosts.py", "{2,})$", "{1,})$"),
        ("hosts.py", 'host.name, f"duplicate', 'number, f"duplicate'),
        ("hosts.py", ">= (3, 8)", ">= (3, 7)"),
        ("hosts.py", 'if path.startswith("~/")', "if True"),
        ("hosts.py", "cannot inspect its files", "is well"),
        ("provider.py", 'if not self._do(node, "make", text=text)["made"]:', "if False:"),
        ("provider.py", "if not nodes and errors:", "if errors:"),
        ("shell.py", 'word.split("\\n")', "[word]"),
        ("shell.py", "- len(self._token) + 1", "- len(self._token) + 3"),
    ),
    *_mutations(
        "providers/trainctl_aws",
        ("tests/unit/aws", "tests/conformance/providers/test_aws.py"),
        ("launch.py", 'if found[0]["State"]["Name"] in LIVE:', "if True:"),
        ("launch.py", 'if error.reason != "IdempotentParameterMismatch":', "if True:"),
        ("launch.py", "if not re.fullmatch(_CAPACITY, error.reason):", "if True:"),
        ("settings.py", 'return "spot" if self.spot else "on-demand"', 'return "on-demand"'),
        ("settings.py", "if 0 < settings.max_nodes < settings.nodes:", "if False:"),
        ("account.py", "|VolumeInUse|", "|"),
    ),
    *_mutations(
        "providers/trainctl_slurm",
        ("tests/unit/slurm", "tests/conformance/providers/test_slurm.py"),
        ("queries.py", "if not comment.startswith(KEY):", "if False:"),
        (
            "submission.py",
            "return request.slot or job_name(request.key)",
            "return job_name(request.key)",
        ),
        ("submission.py", "return own or str(", "return str("),
    ),
    *_mutations(
        "state/trainctl_state",
        ("tests/unit/state", "tests/conformance/state"),
        (
            "log.py",
            "if self._newest_snapshot() > position:\n            if",
            "if False:\n            if",
        ),
        ("log.py", "if self._stored_ids(position) != ids:", "if False:"),
        ("bucket_log.py", "if position == 0 and all(", "if False and all("),
        ("bucket_log.py", "if found is None:", "if True:"),
    ),
    *_mutations(
        "trainctl/ledger",
        ("tests/unit/ledger",),
        ("edits.py", 'if state.moved_to not in ("", new.url):', "if False:"),
        ("edits.py", "if in_use and not state.moved_to:", "if False:"),
        ("edits.py", "if state.lineage and state.lineage != new.lineage:", "if False:"),
        ("edits.py", "if new.serial <= state.serial and state.lineage:", "if False:"),
    ),
    *_mutations(
        "trainctl/encryption",
        ("tests/unit/encryption",),
        ("sealed_log.py", "if position not in (None, at):", "if False:"),
        ("sealed_log.py", "elif not self.admits_plain:", "elif False:"),
        ("sealed_log.py", "end < seen[1]", "False"),
        ("keys.py", "if key not in self._sources:", "if False:"),
    ),
    *_mutations(
        "trainctl/operations/runs",
        (
            "tests/unit/operations/test_reuse.py",
            "tests/e2e/test_reuse.py",
            "tests/e2e/test_sessions.py",
        ),
        ("reuse.py", "if run.status is RunStatus.COMPLETED and _is_usable", "if _is_usable"),
        ("reuse.py", "return not (change.stops or change.resumes or", "return not ("),
        ("control.py", "with_secrets=with_secrets", "with_secrets=True"),
    ),
    *_mutations(
        "trainctl",
        ("tests/unit/operations/test_review.py",),
        ("review/servers.py", 'if (item[place.body] or "").startswith(marker)', "if False"),
        ("review/servers.py", "if posts[0].text.strip() == body.strip():", "if False:"),
        ("review/servers.py", 'if approval["user"]["username"] != request.author and', "if"),
    ),
    *_mutations(
        "trainctl",
        ("tests/unit/plan/test_policies.py",),
        (
            "plan/policies.py",
            "if (value := measure(form)) > most:",
            "if (value := measure(form)) < most:",
        ),
        ("plan/policies.py", 'and "@sha256:" not in image:', "and False:"),
        ("operations/policies.py", "waiver.until >= today", "True"),
    ),
    *_mutations(
        "trainctl/operations/manifests",
        ("tests/unit/operations/test_truss.py", "tests/unit/cli/test_imports.py"),
        ("truss.py", "elif looks_like_credential(command):", "elif False:"),
        ("truss.py", "if name.startswith(RESERVED_PREFIXES) or not", "if not"),
        ("truss.py", 'if not set("*?[") & set(pattern) or', "if True or"),
    ),
    *_mutations(
        "trainctl/node/metrics",
        ("tests/unit/node/metrics/test_progress.py",),
        ("progress.py", 'if not row.keys() & {"step", "loss"}:', "if False:"),
        ("trainer_hook.py", "if not state.is_world_process_zero:", "if False:"),
        ("trainer_hook.py", "> _SECONDS:", "> 0.0:"),
    ),
    *_mutations(
        "trainctl/node/runs",
        ("tests/unit/node/runs/test_points.py",),
        ("points.py", "and abs(number) <= sys.float_info.max", ""),
        ("points.py", 'facts.st_ino != head["inode"] or ', ""),
        ("points.py", ' or facts.st_size < head["offset"]:', ":"),
        ("points.py", "if given > _EARLIEST:", "if given:"),
    ),
]

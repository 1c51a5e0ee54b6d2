"""Examples and exit codes of commands, for help and the reference; loaded only when they are shown."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.base.lazy_dataclass import dataclass, field

EXIT_CODES: Mapping[int, str] = {
    0: "Success. With `--detailed-exitcode`: no changes.",
    1: "The command failed.",
    2: "`plan --detailed-exitcode`: there are changes.",
    10: "Another process is changing the resource or the state.",
    11: "The saved plan is stale: the manifest, the state or the code has changed since.",
    12: "Partial success: a change failed or was skipped, or a run did not complete.",
    13: "A policy, a limit or the trust file forbids the change.",
    64: "Wrong usage: unknown command or option, or an invalid value.",
    130: "Interrupted by the user.",
}
"""The meaning of every exit code."""
COMMON_EXIT_CODES = (0, 1, 64, 130)
"""Those of every command."""


@dataclass(frozen=True, slots=True)
class CommandNotes:
    """Command lines that show a command's use, and what its exit codes mean beyond the common ones."""

    examples: tuple[str, ...]
    exit_codes: Mapping[int, str] = field(default_factory=dict)


_CHANGES = {
    10: "Another process is changing the same resource.",
    12: "Some changes failed or were skipped.",
    13: "Forbidden by a policy, a limit or the trust file.",
}

NOTES: Mapping[str, CommandNotes] = {
    "init": CommandNotes(("trainctl init", "trainctl init sweep --example sweep")),
    "validate": CommandNotes(("trainctl validate",), {1: "The manifest has errors."}),
    "fmt": CommandNotes(
        ("trainctl fmt", "trainctl fmt --check --diff"),
        {1: "With --check: a file isn't formatted. Otherwise: a file is invalid."},
    ),
    "plan": CommandNotes(
        (
            "trainctl plan --var lr=2e-4",
            "trainctl plan --out plan.bin",
            "trainctl plan --format markdown > comment.md",
        ),
        {
            1: "Planning failed, or the plan has errors.",
            2: "There are changes (with --detailed-exitcode).",
            11: "With --expect-check: another plan than the approved one.",
            13: _CHANGES[13],
        },
    ),
    "apply": CommandNotes(
        ("trainctl apply --wait", "trainctl apply --auto-approve plan.bin"),
        {
            **_CHANGES,
            11: "The saved plan is stale, or not the approved one.",
            12: "Some changes failed or were skipped; with --wait, a run did not complete.",
        },
    ),
    "comment": CommandNotes(
        ("trainctl comment plan.bin", "trainctl comment --issue drift.bin"),
        {1: "The plan has errors, or the server refused a request."},
    ),
    "destroy": CommandNotes(
        ("trainctl destroy", "trainctl destroy --target job.train"),
        _CHANGES,
    ),
    "run": CommandNotes(
        ("trainctl run job.train --follow", "trainctl run job.train --resume"),
        {**_CHANGES, 12: "Some runs could not be started; with --follow, a run did not complete."},
    ),
    "reconcile": CommandNotes(
        ("trainctl reconcile --interval 1m", "trainctl reconcile --once"),
        {12: "With --once: some of the work failed or was skipped."},
    ),
    "policy test": CommandNotes(
        ("trainctl policy test --plan plan.bin --policy policy.toml",),
        {13: "A mandatory policy fails or can't be evaluated."},
    ),
    "show": CommandNotes(("trainctl show", "trainctl show --format markdown plan.bin")),
    "graph": CommandNotes(("trainctl graph", "trainctl graph --format svg plan.bin > graph.svg")),
    "status": CommandNotes(
        ("trainctl status", "trainctl status job.train --run 3", "trainctl status --all")
    ),
    "logs": CommandNotes(
        ("trainctl logs job.train --follow", "trainctl logs job.train --rank 0 --grep loss"),
        {1: "A node is unreachable, so that lines may be missing."},
    ),
    "metrics": CommandNotes(
        ("trainctl metrics job.train --follow", "trainctl metrics job.train --format csv")
    ),
    "results": CommandNotes(
        ("trainctl results job.fit --sort val_loss", "trainctl results job.fit --format csv")
    ),
    "ui": CommandNotes(("trainctl ui", "trainctl ui --out site")),
    "stop": CommandNotes(
        ("trainctl stop job.train --grace 2m", "trainctl stop --all --auto-approve"),
        {12: "With several runs: one could not be stopped."},
    ),
    "ssh": CommandNotes(
        (
            "trainctl ssh job.train",
            "trainctl ssh job.train --rank 1 -- nvidia-smi -L",
            "trainctl ssh --config",
        ),
        {1: "The run can't be entered. Otherwise the exit code is that of the command."},
    ),
    "session extend": CommandNotes(("trainctl session extend job.train --minutes 120",)),
    "proxy": CommandNotes(("trainctl proxy job.train 6006", "trainctl proxy job.train 9000:8888")),
    "download": CommandNotes(("trainctl download job.train --run 3",)),
    "checkpoints list": CommandNotes(("trainctl checkpoints list job.train",)),
    "checkpoints download": CommandNotes(
        ("trainctl checkpoints download job.train --name checkpoint-100 --output-dir ./ckpt",)
    ),
    "checkpoints url": CommandNotes(("trainctl checkpoints url job.train --expires 1h",)),
    "checkpoints upload": CommandNotes(("trainctl checkpoints upload job.train --run 3",)),
    "checkpoints deploy": CommandNotes(("trainctl checkpoints deploy job.train --dry-run",)),
    "nodes list": CommandNotes(
        ("trainctl nodes list", "trainctl nodes list --watch", "trainctl nodes list --all")
    ),
    "nodes quarantine": CommandNotes(
        ("trainctl nodes quarantine lab/gpu-03 --reason 'waits for a new GPU'",)
    ),
    "nodes release": CommandNotes(("trainctl nodes release lab/gpu-03",)),
    "nodes forget": CommandNotes(("trainctl nodes forget lab/gpu-03",)),
    "nodes reap": CommandNotes(
        ("trainctl nodes reap", "trainctl nodes reap --auto-approve --format json"),
        {1: "A machine could not be ended."},
    ),
    "mirror list": CommandNotes(("trainctl mirror list",)),
    "mirror verify": CommandNotes(
        ("trainctl mirror verify --repair",), {1: "Something in the mirror is corrupt or missing."}
    ),
    "mirror gc": CommandNotes(
        ("trainctl mirror gc --dry-run", "trainctl mirror gc --drop-unused 90d")
    ),
    "cache summarize": CommandNotes(("trainctl cache summarize demo --sort size --order desc",)),
    "cache clear": CommandNotes(("trainctl cache clear demo --older-than 30d",)),
    "cache verify": CommandNotes(
        ("trainctl cache verify lab",),
        {1: "A live run uses corrupt weights, or a node is unreachable."},
    ),
    "cache evict": CommandNotes(
        ("trainctl cache evict lab weights.base --dry-run",),
        {1: "Named weights are still in use, or a node is unreachable."},
    ),
    "secrets check": CommandNotes(
        ("trainctl secrets check",),
        {1: "A secret can't be read.", 13: "The trust file doesn't allow a recipient."},
    ),
    "secrets push": CommandNotes(
        ("trainctl secrets push", "trainctl secrets push wandb --from-env WANDB_API_KEY"),
        {1: "Some runs still wait for secrets."},
    ),
    "state list": CommandNotes(("trainctl state list",)),
    "state show": CommandNotes(("trainctl state show job.train --at 5",)),
    "state pull": CommandNotes(("trainctl state pull > state.json",)),
    "import": CommandNotes(
        ("trainctl import cluster.lab", "trainctl import job.train --run nuui5lk --on lab/gpu-01"),
        {10: _CHANGES[10], 12: _CHANGES[12]},
    ),
    "state push": CommandNotes(("trainctl state push state.json",), {10: _CHANGES[10]}),
    "state mv": CommandNotes(("trainctl state mv job.sft job.tune",), {10: _CHANGES[10]}),
    "state rm": CommandNotes(("trainctl state rm --dry-run job.sft",), {10: _CHANGES[10]}),
    "state migrate": CommandNotes(
        ("trainctl state migrate s3://acme-state/qwen3", "trainctl state migrate --abort"),
        {10: "Changes are in progress."},
    ),
    "state rekey": CommandNotes(("trainctl state rekey",), {10: _CHANGES[10]}),
    "state leases": CommandNotes(("trainctl state leases",)),
    "import truss": CommandNotes(
        (
            "trainctl import truss config.py --hosts gpu-01,gpu-02",
            "trainctl import truss --from-json dump.json --out -",
        ),
        {1: "A run would do something else than on the service, or the config can't be read."},
    ),
    "history": CommandNotes(("trainctl history job.train",)),
    "usage": CommandNotes(
        ("trainctl usage --since 30d", "trainctl usage --all --by user --state file:///srv/states")
    ),
    "force-unlock": CommandNotes(("trainctl force-unlock 5d1f0c3a-7a52-4be8-9d0e-1f6b2c3d4e5f",)),
    "explain": CommandNotes(
        ("trainctl explain jobs.*.runtime", "trainctl explain stale-plan"),
    ),
    "providers": CommandNotes(("trainctl providers",)),
    "schema": CommandNotes(("trainctl schema > trainctl.schema.json", "trainctl schema plan")),
    "version": CommandNotes(("trainctl version --format json",)),
}
"""Notes by the words of the command."""


def help_lines(command: str) -> list[str]:
    """The lines that follow a command's options in its help; ``command`` is without ``trainctl``."""
    notes = NOTES.get(command)
    if notes is None:
        return []
    codes = [f"  {code:<3} {meaning}" for code, meaning in sorted(notes.exit_codes.items())]
    return [
        *(["Exit codes:", *codes, ""] if codes else []),
        "Examples:" if len(notes.examples) > 1 else "Example:",
        *(f"  {line}" for line in notes.examples),
    ]

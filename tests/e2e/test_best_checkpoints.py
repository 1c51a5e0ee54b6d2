"""The best checkpoint of a sweep, by what its trainings and evaluations reported: listed, downloaded, loaded and resumed from."""

from __future__ import annotations

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

MANIFEST = """\
project: {name: demo}
checkpoints: {keep_best: {metric: val_loss, count: 3}}
jobs:
  fit:
    code: ./src
    compute: {accelerator: none}
    matrix: {lr: [1, 2]}
    runtime:
      start_commands: ["python3 fit.py ${{ matrix.lr }}"]
      checkpointing_config: {enabled: true}
  eval:
    code: ./src
    compute: {accelerator: none}
    matrix: {lr: [1, 2]}
    for_each_checkpoint: {job: fit}
    runtime: {start_commands: ["python3 eval.py"]}
  export:
    code: ./src
    compute: {accelerator: none}
    runtime:
      start_commands: ["cat $BT_LOAD_CHECKPOINT_DIR/*/rank-0/*/model.bin"]
      load_checkpoint_config:
        enabled: true
        checkpoints: [{typ: best, job_id: "fit[*]", metric: eval.accuracy, mode: max}]
"""
FIT = """\
import json, os, pathlib, sys

lr = int(sys.argv[1])
print("begins with", [path.name for path in pathlib.Path(os.environ["BT_LOAD_CHECKPOINT_DIR"]).glob("*/rank-0/*")])
for step in (10, 20, 30, 40):
    target = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], f"checkpoint-{step}")
    target.mkdir()
    (target / "model.bin").write_text(f"{lr} {step}")
    with open(os.environ["TRAINCTL_PROGRESS"], "a") as file:
        print(json.dumps({"step": step, "val_loss": abs(step - 19) / lr}), file=file)
"""
EVAL = """\
import glob, json, os

(path,) = glob.glob(os.environ["BT_LOAD_CHECKPOINT_DIR"] + "/*/rank-0/*/model.bin")
lr, step = map(int, open(path).read().split())
with open(os.environ["TRAINCTL_PROGRESS"], "a") as file:
    print(json.dumps({"accuracy": 1 - abs(step - 31) / 100 - lr / 10}), file=file)
"""
STEPS = [(lr, step) for lr in (1, 2) for step in (10, 20, 30, 40)]


def test_the_best_of_a_sweep(fresh: ProjectHarness) -> None:
    fresh.write({"trainctl.yaml": MANIFEST, "src/fit.py": FIT, "src/eval.py": EVAL})
    fresh.run("apply", "--auto-approve", "--wait", code=None)
    ranked = fresh.json("checkpoints", "list", "fit", "--by", "val_loss")["checkpoints"]
    accurate = fresh.json("checkpoints", "list", "fit", "--by", "eval.accuracy:max")["checkpoints"]
    planned = fresh.run("plan").stdout
    fresh.run("apply", "--auto-approve", "--wait")
    exported = fresh.run("logs", "export").stdout
    place = fresh.run("checkpoints", "download", "fit[*]", "--name", "best", "--output-dir", "out")
    resumed = fresh.run("run", "fit[lr=1]", "--resume", "--by", "val_loss", "--auto-approve", "--follow")  # fmt: skip
    again = fresh.run("plan").stdout
    fresh.run("apply", "--auto-approve", "--wait")
    after = fresh.run("plan").stdout
    second = fresh.json("status", "eval[lr=1]")

    def reference(value: dict[tuple[int, int], float]) -> list[tuple[str, int]]:
        return [(f'job.fit["lr={lr}"]', step) for lr, step in sorted(value, key=value.__getitem__)]

    losses = {(lr, step): abs(step - 19) / lr for lr, step in STEPS}
    errors = {(lr, step): abs(step - 31) / 100 + lr / 10 for lr, step in STEPS}
    assert [(row["job"], row["step"]) for row in ranked] == reference(losses)
    assert [row["value"] for row in ranked] == sorted(losses.values())
    assert [(row["job"], row["step"]) for row in accurate] == reference(errors)
    assert "loads checkpoint-30 of run 1 (" in planned
    assert 'of job.fit["lr=1"], step 30: eval.accuracy 0.89, highest of 8 in 2 runs' in planned
    assert exported.strip() == "1 30"
    assert (fresh.directory / place.stdout.strip() / "model.bin").read_text() == "2 20"
    assert 'of job.fit["lr=2"], step 20: val_loss 0.5, lowest of 8 in 2 runs' in place.stderr
    assert "begins with ['checkpoint-20']" in resumed.stdout
    reason = "will run again: the job that it evaluates has a new run"
    assert f'job.eval["lr=1"] {reason}' in again
    assert 'runs once for each checkpoint of job.fit["lr=1"], about 4 as in run 1' in again
    assert 'job.eval["lr=2"]' not in again
    assert "No changes" in after
    assert [row["step"] for row in second["evaluations"]] == [10, 20, 30, 40]


def test_the_best_is_chosen_when_all_evaluations_have_ended(fresh: ProjectHarness) -> None:
    """A metric that nothing reports is named."""
    manifest = MANIFEST.replace("    matrix: {lr: [1, 2]}\n", "").replace("${{ matrix.lr }}", "1")
    manifest = manifest.replace('"fit[*]"', "fit")
    go = fresh.directory / "go"
    hold = f"while step > 10 and not os.path.exists('{go}'): time.sleep(0.1)\n"
    write = 'with open(os.environ["TRAINCTL_PROGRESS"]'
    held = EVAL.replace("import glob", "import time, glob").replace(write, hold + write)
    fresh.write({"trainctl.yaml": manifest, "src/fit.py": FIT, "src/eval.py": held})
    fresh.run("apply", "--auto-approve", code=None)
    wait_for(lambda: any(row["status"] == "completed" for row in fresh.json("status", "eval")["evaluations"] or ()))  # fmt: skip
    early = fresh.run("apply", "--auto-approve", code=None).stdout
    go.touch()
    wait_for(lambda: fresh.json("status", "eval")["status"] == "TRAINING_JOB_COMPLETED")
    fresh.write({"trainctl.yaml": manifest.replace("eval.accuracy", "eval.acuracy")})
    misspelt = fresh.run("plan")
    fresh.write({"trainctl.yaml": manifest})
    fresh.run("apply", "--auto-approve", "--wait")

    assert "job.export: waits: the best checkpoint of job.fit is chosen when its runs" in early
    assert (
        "best checkpoint of job.fit: no checkpoint has a value of eval.acuracy" in misspelt.stderr
    )
    assert fresh.run("logs", "export").stdout.strip() == "1 30"


def test_evaluations_are_replaced_with_the_training(fresh: ProjectHarness) -> None:
    """While both are live: the new run of the one evaluates the checkpoints of the new run of the other."""
    manifest = MANIFEST.replace("    matrix: {lr: [1, 2]}\n", "").partition("  export:")[0]
    manifest = manifest.replace("python3 fit.py ${{ matrix.lr }}", "python3 fit.py 1; sleep 60")
    fresh.write({"trainctl.yaml": manifest, "src/fit.py": FIT, "src/eval.py": EVAL})
    fresh.run("apply", "--auto-approve")
    wait_for(lambda: fresh.json("status", "eval")["evaluations"])
    fresh.write({"trainctl.yaml": manifest.replace("fit.py 1; sleep 60", "fit.py 2")})
    planned = fresh.run("plan").stdout
    fresh.run("apply", "--auto-approve", "--stop-running", "--wait", code=None)
    status = fresh.json("status", "eval")
    after = fresh.run("plan").stdout

    assert "job.eval will run again: the job that it evaluates has a new run" in planned
    assert (status["number"], status["status"]) == (2, "TRAINING_JOB_COMPLETED")
    assert [(row["run"][-9:-8], row["step"], row["status"]) for row in status["evaluations"]] == [("2", step, "completed") for step in (10, 20, 30, 40)]  # fmt: skip
    assert "No changes" in after

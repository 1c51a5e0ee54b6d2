"""What a job's first command needs of its host, read from the command and the code."""

from __future__ import annotations

from typing import Any

import pytest

from trainctl.jobs.host_requirements import HostRequirements, host_requirements
from trainctl.model.specs.job_spec import JobSpec

FILES = {"train.py": "-", "run.sh": "x", "noexec.sh": "-", "sub/run.py": "-"}


def needs(*commands: str, **more: Any) -> HostRequirements:
    """Of a job with the code above."""
    runtime = {"start_commands": commands, "environment_variables": more.pop("variables", {})}
    return host_requirements(JobSpec.from_attributes({"runtime": runtime, **more}), FILES)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py", "python"),
        ("python3.11 -u ./train.py --lr 1", "python3.11"),
        ("LR=1 python train.py", "python"),
        ("python -m accelerate.commands.launch x.py", "python"),
        ("torchrun --nnodes $BT_GROUP_SIZE train.py", "torchrun"),
        ("pip install -r requirements.txt && python train.py", "pip"),
        ("/opt/conda/bin/python train.py", "/opt/conda/bin/python"),
        ("python /opt/gone.py", "python"),
        ("python ../gone.py", "python"),
        ("bash $SCRIPT", "bash"),
        ("./run.sh --lr 1", ""),
        ("cd sub", ""),
        ("echo $(pip install x)", ""),
        ("if true; then x; fi", ""),
        ("(python train.py)", ""),
        ("$PYTHON gone.py", ""),
        ("A=$(cat x) python gone.py", ""),
        ("env A=1 pip install torch", ""),
        ("PYTHONPATH=. python3 gone.py", ""),
        ("A=1 PATH=$PWD/bin:$PATH mytool", ""),
    ],
)
def test_the_program_of_the_first_command(command: str, program: str) -> None:
    """It is known if it is plainly written; whatever can't be read for certain is not reported."""
    assert needs(command) == HostRequirements(program)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python gone.py", "gone.py"),
        ("sh sub/gone.sh", "sub/gone.sh"),
        ("./gone.sh", "gone.sh"),
        ("./noexec.sh", "noexec.sh"),
    ],
)
def test_a_script_that_is_not_in_the_code(command: str, script: str) -> None:
    """It is named, as is one that may not be executed."""
    assert script in needs(command).problem

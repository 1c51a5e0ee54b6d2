"""What a job's commands need on the host, read from the commands and the code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainctl.jobs.host_needs import HostNeeds, host_needs, sources

CODE = {
    "train.py": "import os, numpy\nfrom torch.nn import Linear\nimport helper\nimport pkg.part\nfrom . import x\n",
    "helper.py": "import yaml\ntry:\n    import optional\nexcept ImportError:\n    pass\n",
    "pkg/__init__.py": "",
    "pkg/part.py": "import never_followed",
    "sub/run.py": '"""Doc."""\nimport helper, near',
    "sub/near.py": "import attrs",
    "path.py": "import sys\nsys.path.insert(0, 'vendor')\nimport vendored",
    "broken.py": "import torch\nthis is no python",
    "compiled.py": "import fastext, mylib.a",
    "fastext.cpython-311-x86_64-linux-gnu.so": "",
    "sub/compiled.py": "import fastext, mylib.a",
    "run.sh": "#!/bin/bash\necho",
    "by-env.sh": "#! /usr/bin/env -S python3 -u\n",
    "plain.sh": "echo",
    "noexec.sh": "#!/bin/bash\n",
    "program": "\x7fELF",
}
EXECUTABLE = {"run.sh", "by-env.sh", "plain.sh", "program"}


def needs(tmp_path: Path, *commands: str, **more: Any) -> HostNeeds:
    """Of a job with the code above."""
    for name, text in CODE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    runtime: Mapping[str, Any] = {
        "start_commands": commands,
        "environment_variables": more.pop("variables", {}),
    }
    job = {"runtime": runtime, "weights": [], "mounts": [], **more}
    return host_needs(
        job, sources(tmp_path, {name: "x" if name in EXECUTABLE else "-" for name in CODE})
    )


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        (["python train.py"], HostNeeds("python", ("numpy", "torch", "yaml"))),
        (["python3.11 -u -X dev ./train.py --lr 1"], HostNeeds("python3.11", ("numpy", "torch", "yaml"))),
        (["LR=1 exec python train.py"], HostNeeds("python", ("numpy", "torch", "yaml"))),
        (["echo hello", "mkdir -p out", "python helper.py > $BT_SCRATCH_DIR/log"], HostNeeds("python", ("yaml",))),
        (["python sub/run.py"], HostNeeds("python", ("attrs", "helper"))),
        (["python path.py"], HostNeeds("python")),
        (["python broken.py"], HostNeeds("python")),
        (["python -m accelerate.commands.launch x.py"], HostNeeds("python", ("accelerate",))),
        (["python -m pkg.part"], HostNeeds("python")),
        (["python -m http.server"], HostNeeds("python", ("http",))),
        (["python -c 'import torch'"], HostNeeds("python")),
        (["python $SCRIPT"], HostNeeds("python")),
        (["python tra$X.py"], HostNeeds("python")),
        (["python /opt/x.py"], HostNeeds("python")),
        (["torchrun --nnodes $BT_GROUP_SIZE train.py"], HostNeeds("torchrun")),
        (["pip install -r requirements.txt && python train.py"], HostNeeds("pip")),
        (["/opt/conda/bin/python train.py"], HostNeeds("/opt/conda/bin/python")),
        (["./run.sh --lr 1"], HostNeeds("/bin/bash")),
        (["./by-env.sh"], HostNeeds("python3")),
        (["./plain.sh", "python gone.py"], HostNeeds()),
        (["./program"], HostNeeds()),
        (["nohup ./noexec.sh"], HostNeeds(unexecutable="noexec.sh")),
        (["sub/gone.sh"], HostNeeds(missing_script="sub/gone.sh")),
        (["bash run.sh && python x.py"], HostNeeds("bash")),
        (["bash -eu gone.sh"], HostNeeds("bash")),
        (["sh gone.sh"], HostNeeds("sh", missing_script="gone.sh")),
        (["bash /opt/gone.sh"], HostNeeds("bash")),
        (["bash $SCRIPT"], HostNeeds("bash")),
        (["time python gone.py"], HostNeeds("python", missing_script="gone.py")),
        (["python gone.py"], HostNeeds("python", missing_script="gone.py")),
        (["cd sub", "python run.py"], HostNeeds()),
        (["export A=1", "nothing"], HostNeeds()),
        (["echo $(pip install x)", "python train.py"], HostNeeds()),
        (["if true; then x; fi"], HostNeeds()),
        (["(python train.py)"], HostNeeds()),
        (["$PYTHON train.py"], HostNeeds()),
        (["true", "echo done"], HostNeeds()),
        (["A='x y' B=\"$C d\" python helper.py"], HostNeeds("python", ("yaml",))),
        (["A=$(cat x y) python train.py"], HostNeeds()),
        (["A=1;train.py"], HostNeeds()),
        (["env PIP_NO_INPUT=1 pip install torch", "python train.py"], HostNeeds()),
        (["PYTHONPATH=. python3 sub/run.py"], HostNeeds()),
        (["PYTHONPATH=src:$PYTHONPATH python3 train.py"], HostNeeds()),
        (["A=1 PYTHONPATH=$PWD/src B=2 python3 -m nowhere.mod"], HostNeeds()),
        (["PATH=$PWD/bin:$PATH mytool"], HostNeeds()),
        (["LD_LIBRARY_PATH+=/x python3 train.py"], HostNeeds()),
        (["PATH=$PWD/bin", "mytool"], HostNeeds()),
        (["export PATH=$PWD/bin", "mytool"], HostNeeds()),
        (["python compiled.py"], HostNeeds("python", ("mylib",))),
        (["python sub/compiled.py"], HostNeeds("python", ("fastext", "mylib"))),
        (["python -m fastext"], HostNeeds("python")),
    ],
)  # fmt: skip
def test_the_first_program_that_matters(
    tmp_path: Path, commands: list[str], found: HostNeeds
) -> None:
    """What comes before everything else is told; whatever can't be read for certain is not."""
    assert needs(tmp_path, *commands) == found


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"),
    ],
)
def test_variables_that_change_what_is_found(tmp_path: Path, name: str) -> None:
    """Nothing is said of a job that sets its own search path."""
    assert needs(tmp_path, "python gone.py", variables={name: "/x"}) == HostNeeds()


def test_a_script_may_lie_where_something_is_mounted(tmp_path: Path) -> None:
    """It is not missing in the code then."""
    found = needs(tmp_path, "python weights/m/run.py", weights=[{"mount_location": "weights/m"}])

    assert found == HostNeeds("python")


@pytest.mark.parametrize(
    ("command", "place", "modules"),
    [
        ("python compiled.py", "mylib", ()),
        ("python compiled.py", "mylib/a", ()),
        ("python compiled.py", "/mylib", ("mylib",)),
        ("python compiled.py", "sub/mylib", ("mylib",)),
        ("python sub/compiled.py", "sub/mylib", ("fastext",)),
        ("python sub/compiled.py", "mylib", ("fastext", "mylib")),
        ("python -m mylib.a", "mylib", ()),
    ],
)
@pytest.mark.parametrize("section", ["mounts", "weights"])
def test_a_package_may_be_mounted(
    tmp_path: Path, section: str, command: str, place: str, modules: tuple[str, ...]
) -> None:
    """What lies beside the script is found, whether it is code or comes from a directory of the host or from weights."""
    found = needs(tmp_path, command, **{section: [{"mount_location": place}]})

    assert found == HostNeeds("python", modules)

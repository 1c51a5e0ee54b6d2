"""Which files are a job's code, what they are called, and the archive that travels."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.projects.plans import PlanScenario
from tests.support.projects.recipes import git
from tests.support.storage.weights_data import LFS_POINTER
from trainctl.base.filesystem.archives import unpack
from trainctl.errors import TrainctlError
from trainctl.inputs.code import DOWNLOAD_MARK, CodeSource, pack, scan, scan_code
from trainctl.model.address import Address, Kind
from trainctl.model.contents import ContentDiff
from trainctl.model.specs.job_spec import CodeSpec
from trainctl.operations.contents import compare_code
from trainctl.plan.plan_file import write_plan
from trainctl.plan.planner import make_plan
from trainctl.plan.values import OUTPUT_MARK
from trainctl.views.plan.html import plan_html
from trainctl.views.plan.json import plan_json
from trainctl.views.plan.pages import plan_markdown
from trainctl.views.plan.text import plan_text


def archive(code: CodeSource) -> list[bytes]:
    """The pieces of the tar that travels."""
    with pack(code) as pieces:
        return list(pieces)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Code outside git."""
    return write(tmp_path / "code", {"train.py": "print(1)\n", "lib/model.py": "x = 1\n"})


@pytest.fixture(params=["git", "plain"])
def any_tree(request: pytest.FixtureRequest, tree: Path) -> Path:
    """The same code, once inside git and once outside."""
    if request.param == "git":
        git(tree, "init", "-q")
    return tree


def paths(code: CodeSource) -> list[str]:
    return [file.path for file in code.files]


def test_the_digest_is_the_same_inside_git_and_outside(tree: Path) -> None:
    """git is asked what the code is, not who it is: contents, names, executable bits and links count alike."""
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "latest").symlink_to("lib/model.py")
    plain = scan(tree, ".").tree
    git(tree, "init", "-q")
    assert scan(tree, ".").tree == plain
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "x")
    assert scan(tree, ".").tree == plain
    assert plain.files == 4


def test_code_in_a_directory_of_the_repository_is_its_own(tree: Path) -> None:
    """A file of the same name at the top of the work tree is another file, and doesn't lend its content."""
    git(tree, "init", "-q")
    write(tree, {"src/train.py": "print(2)\n"})
    before = scan(tree, "src").tree
    write(tree, {"src/train.py": "print(3)\n"})
    after = scan(tree, "src").tree
    assert before.digest != after.digest
    write(tree, {"train.py": "print('top')\n"})
    assert scan(tree, "src").tree == after
    (tree / "train.py").unlink()
    assert scan(tree, "src").tree == after


def test_git_normalises_line_ends(tree: Path) -> None:
    write(tree, {".gitattributes": "*.py text\n"})
    git(tree, "init", "-q")
    unix = scan(tree, ".").tree.digest
    (tree / "train.py").write_bytes(b"print(1)\r\n")
    assert scan(tree, ".").tree.digest == unix


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print(2)\n"),
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "train.py").rename(root / "other.py"),
        lambda root: (root / "empty").touch(),
        lambda root: (root / "train.py").unlink(),
    ],
    ids=["content", "executable", "name", "added", "removed"],
)
def test_every_change_changes_the_digest(any_tree: Path, change: Callable[[Path], object]) -> None:
    before = scan(any_tree, ".").tree.digest
    change(any_tree)
    assert scan(any_tree, ".").tree.digest != before


def test_git_says_what_is_ignored(tree: Path) -> None:
    write(tree, {".gitignore": "data/\n", "data/big": "x", "new": "x", "old": "x"})
    git(tree, "init", "-q")
    git(tree, "add", "old")
    (tree / "old").unlink()
    assert paths(scan(tree, ".")) == [".gitignore", "lib/model.py", "new", "train.py"]


def test_outside_git_a_short_list_is_left_out_and_told(tree: Path) -> None:
    write(tree, {"__pycache__/x.pyc": "", "venv/bin/python": "", "lib/a.pyc": ""})
    code = scan(tree, ".")
    assert paths(code) == ["lib/model.py", "train.py"]
    assert code.excluded == ("__pycache__/", "lib/a.pyc", "venv/")


def test_an_ignore_file_leaves_out(any_tree: Path) -> None:
    """.trainctlignore has gitignore syntax, is preferred to .truss_ignore, and doesn't travel itself."""
    write(any_tree, {".trainctlignore": "lib/\n", ".truss_ignore": "train.py\n"})
    assert paths(scan(any_tree, ".")) == [".truss_ignore", "train.py"]
    (any_tree / ".trainctlignore").unlink()
    assert paths(scan(any_tree, ".")) == ["lib/model.py"]


def test_keys_and_dotenv_files_must_be_asked_for(any_tree: Path) -> None:
    write(any_tree, {".env": "A=1", ".env.local": "A=1", "id_ed25519": "k", "tls/a.pem": "k"})
    code = scan(any_tree, ".")
    assert paths(code) == ["lib/model.py", "train.py"]
    assert code.excluded == (".env", ".env.local", "id_ed25519", "tls/a.pem")
    write(any_tree, {".trainctlignore": "!.env\n"})
    asked = scan(any_tree, ".")
    assert ".env" in paths(asked)
    assert asked.excluded == (".env.local", "id_ed25519", "tls/a.pem")


def test_what_is_never_code(any_tree: Path) -> None:
    """Manifests, the lock file, the state, saved plans under any name, and files that secrets name, also through a link."""
    write(
        any_tree,
        {
            "trainctl.yaml": "a",
            "b.trainctl.toml": "a",
            "trainctl.lock": "{}",
            ".trainctl.lock.0123456789abcdef": "{}",  # of an apply that was killed
            ".trainctl/state/log": "x",
            "p.bin": '{"trainctl_plan": {"major": 1}}',
            "aws.json": "secret",
            ".trainctlignore": "!trainctl.lock\n!aws.json\n!p.bin\n",
        },
    )
    (any_tree / "config").symlink_to("aws.json")
    code = scan(any_tree, ".", [(any_tree / "aws.json").resolve()])
    assert paths(code) == ["lib/model.py", "train.py"]
    assert code.excluded == ()


def test_output_of_trainctl_is_no_code(any_tree: Path) -> None:
    """Plans and states in each form are recognized by their first line, under any name; a file that only mentions them is code.

    A directory that is marked as a download is none either.
    """
    plan = make_plan(PlanScenario().inputs())
    outputs = {
        "comment.md": plan_markdown(plan),
        "out/plan.html": plan_html(plan),
        "plan.json": [json.dumps(plan_json(plan), indent=2)],
        "plan.txt": [f"# {OUTPUT_MARK}", *plan_text(plan)],
        "p.bin": [write_plan(plan, PlanScenario().inputs().desired, "0.1.0")],
        f"out/checkpoint-60/{DOWNLOAD_MARK}": [OUTPUT_MARK],
        "out/checkpoint-60/optimizer/state.bin": ["weights"],
    }
    before = scan(any_tree, ".").tree
    write(any_tree, {name: "\n".join(lines) for name, lines in outputs.items()})
    after = scan(any_tree, ".").tree
    write(any_tree, {"doc.md": "# Plans\n" * 20 + outputs["comment.md"][0]})

    assert (before.digest, before.files) == (after.digest, after.files)
    assert after.excluded == ("out/checkpoint-60/",)
    assert "doc.md" in paths(scan(any_tree, "."))


def test_where_trainctl_keeps_things_is_no_code(any_tree: Path) -> None:
    """A mirror or a cache in the code is left out, said so once it is there, and no ignore file asks for it; beside it a name that begins alike is code."""
    withheld = [any_tree / "keep" / "mirror", any_tree.parent, any_tree / "none"]
    before = scan(any_tree, ".", withheld)
    write(any_tree, {"keep/mirror/blobs/x": "x", "keep/mirror-code.py": "pass"})
    write(any_tree, {".trainctlignore": "!keep/mirror/\n"})
    after = scan(any_tree, ".", withheld)
    assert before.excluded == ()
    assert paths(after) == ["keep/mirror-code.py", "lib/model.py", "train.py"]
    assert after.excluded == ("keep/mirror/",)


@pytest.mark.parametrize(
    "target", ["../outside", "lib/../../outside", "../code/train.py", "{root}/train.py"]
)
def test_a_link_that_leaves_the_tree_is_refused(any_tree: Path, target: str) -> None:
    """Here, or on a node, where the tree has another name and place."""
    write(any_tree.parent, {"outside": "x"})
    (any_tree / "link").symlink_to(target.format(root=any_tree))
    with pytest.raises(TrainctlError, match="symlink link in the code leaves the code directory"):
        scan(any_tree, ".")


def test_other_repositories_inside_are_told(tree: Path) -> None:
    """What is in a repository that is no submodule doesn't travel; the plan can say so."""
    git(tree, "init", "-q")
    write(tree, {"vendor/x.py": "x"})
    git(tree / "vendor", "init", "-q")
    git(tree / "vendor", "add", ".")
    git(tree / "vendor", "commit", "-qm", "x")
    code = scan(tree, ".")
    assert (paths(code), code.excluded) == (["lib/model.py", "train.py"], ("vendor/",))
    write(tree, {".trainctlignore": "vendor/\n"})
    assert scan(tree, ".").excluded == ()


def test_submodules_travel(tree: Path, tmp_path: Path) -> None:
    """With their own ignore files and submodules; one that isn't checked out is named."""
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q")
    inner = write(tmp_path / "inner", {"inner.py": "x"})
    outer = write(tmp_path / "outer", {"outer.py": "x", ".gitignore": "*.log\n"})
    for place, *module in ((inner,), (outer, inner, "sub"), (tree, outer, "vendor")):
        git(place, "init", "-q")
        if module:
            git(place, *add, *map(str, module))
        git(place, "add", ".")
        git(place, "commit", "-qm", "x")
    code = scan(tree, ".")
    assert (code.excluded, code.empty_submodules()) == (("vendor/sub/",), ["vendor/sub/"])
    git(tree, *add[:2], "submodule", "update", "-q", "--init", "--recursive")
    write(tree, {"vendor/new.py": "x", "vendor/x.log": "x"})
    code = scan(tree, ".")
    names = {
        name for name in paths(code) if name.startswith("vendor/") and name.endswith(("py", "log"))
    }
    assert names == {"vendor/new.py", "vendor/outer.py", "vendor/sub/inner.py"}
    assert (code.excluded, code.empty_submodules()) == ((), [])
    diff = ContentDiff(Address(Kind.JOB, "a"), "code", "", "")
    diff = compare_code(diff, tree, "HEAD", code.blobs)
    assert [row.name for group in diff.groups for row in group.changes] == ["vendor/new.py"]


def test_a_pointer_of_git_lfs_is_no_code(any_tree: Path) -> None:
    (any_tree / "lib" / "w.bin").write_bytes(LFS_POINTER)
    with pytest.raises(TrainctlError, match=r"lib/w\.bin in the code is a Git LFS pointer"):
        scan(any_tree, ".")
    write(any_tree, {".trainctlignore": "*.bin\n"})
    assert "lib/w.bin" not in paths(scan(any_tree, "."))


@pytest.mark.parametrize("name", ['"quoted"', "-x", " ", "a b", "ü", "$(x)", "'", "\\"])
def test_strange_names_are_just_names(any_tree: Path, name: str) -> None:
    (any_tree / name).write_text("one")
    digest = scan(any_tree, ".").tree.digest
    (any_tree / name).write_text("two")
    assert scan(any_tree, ".").tree.digest != digest


def test_the_directory_must_exist_and_lie_inside(tmp_path: Path) -> None:
    """Beside the manifest, or in the same git work tree: nothing else of the machine is code."""
    manifest = write(tmp_path / "repo" / "jobs", {"a": "x"}).resolve()
    write(tmp_path / "repo" / "src", {"train.py": "x"})
    with pytest.raises(TrainctlError, match="code directory 'gone' not found"):
        scan(manifest, "gone")
    for spec in (CodeSpec("../src"), CodeSpec(".", ("../src",))):
        with pytest.raises(TrainctlError) as refused:
            scan_code(manifest, spec)
        assert refused.value.code == "code-outside"
    git(tmp_path / "repo", "init", "-q")
    assert paths(scan(manifest, "../src")) == ["train.py"]
    with pytest.raises(TrainctlError, match="is outside the manifest's directory"):
        scan(manifest, "../..")


def test_the_repository_is_the_one_of_the_code(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run from a hook of another repository, git still speaks of this one."""
    git(tree, "init", "-q")
    other = write(tmp_path / "other", {"x": "x"})
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert paths(scan(tree, ".")) == ["lib/model.py", "train.py"]


def test_the_archive_is_the_same_for_the_same_files(any_tree: Path, tmp_path: Path) -> None:
    (any_tree / "run.sh").write_text("x")
    (any_tree / "run.sh").chmod(0o700)
    (any_tree / "link").symlink_to("run.sh")
    first = b"".join(archive(scan(any_tree, ".")))
    os.utime(any_tree / "train.py", (1, 1))
    (any_tree / "train.py").chmod(0o600)
    assert b"".join(archive(scan(any_tree, "."))) == first
    (tmp_path / "out").mkdir()
    unpack(io.BytesIO(first), tmp_path / "out")
    assert scan(tmp_path / "out", ".").tree == scan(any_tree, ".").tree
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)


def test_the_archive_comes_in_pieces(tree: Path) -> None:
    """At most 1 MiB each, so that large code doesn't stand in memory."""
    (tree / "big.bin").write_bytes(bytes(5 * 2**19))
    pieces = list(archive(scan(tree, ".")))
    assert max(map(len, pieces)) == 2**20
    assert len(pieces) > 2


@pytest.mark.parametrize("form", ["whole", "common"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_bare_repository_is_no_code(tmp_path: Path, form: str, *, inner: bool) -> None:
    """One can be checked in, and its settings name programs that git would run: it is refused, and nothing was run."""
    bare, ran = tmp_path / "code", tmp_path / "ran"
    git(tmp_path, "init", "-q")
    git(tmp_path, "init", "-q", "--bare", str(bare))
    with (bare / "config").open("a") as config:
        config.write(f"[core]\nbare = false\nworktree = {bare}\nfsmonitor = touch {ran}; false\n")
        config.write(f'[filter "x"]\nclean = touch {ran}; cat\n')
    write(bare, {".gitattributes": "* filter=x\n", "sub/train.py": "print(1)\n"})
    if form == "common":
        parts = tmp_path / "parts"
        parts.mkdir()
        for name in ("objects", "refs", "config"):
            (bare / name).rename(parts / name)
        (bare / "commondir").write_text("../parts\n")
    with pytest.raises(TrainctlError, match="is a bare git repository"):
        scan(tmp_path, "code/sub" if inner else "code")
    assert not ran.exists()


def test_external_directories_get_their_names(tmp_path: Path) -> None:
    """Their files are in the digest and in the archive; excluded directories are in neither."""
    work = tmp_path / "repo/job"
    for name in ("repo/job/train.py", "repo/job/data/big", "repo/shared/lib/a.py", "repo/job/in/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=True)
    code = scan_code(work, CodeSpec(".", ("../shared", "in"), ("data",)))
    assert paths(code) == ["in/b", "shared/lib/a.py", "train.py"]
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(code)))) as tar:
        assert tar.extractfile("shared/lib/a.py").read() == b"repo/shared/lib/a.py"  # type: ignore[union-attr]
    assert code.tree.digest != scan_code(work, CodeSpec(".", (), ("data",))).tree.digest
    (work / "shared").mkdir()
    for spec in (CodeSpec(".", ("../shared",)), CodeSpec(".", (), ("data/inner",))):
        with pytest.raises(TrainctlError) as refused:
            scan_code(work, spec)
        assert refused.value.code == "invalid-workspace"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Code in a folder of a repository, committed, with a file that is never code."""
    code = tmp_path / "src"
    code.mkdir()
    texts = {"kept": "a\n", "train.py": "a\nb\n", "old.py": "x\n", "secret\t": "s\n", "b.bin": "\0"}
    for name, text in texts.items():
        (code / name).write_text(text)
    (code / ".trainctlignore").write_text("secret*\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return code


def compare(code: Path, before: str) -> tuple[dict[str, tuple[object, object]], tuple[str, ...]]:
    """Compare the code with the only commit, which a run with code of this digest names."""
    now = scan(code, ".")
    diff = ContentDiff(Address.parse("job.a"), "code", before, now.tree.digest)
    diff = compare_code(diff, code, git(code, "rev-parse", "HEAD"), now.blobs)
    (group,) = diff.groups
    return {row.name: (row.before, row.after) for row in group.changes}, diff.notes


def test_lines_of_each_file(code: Path) -> None:
    before = scan(code, ".").tree.digest
    (code / "train.py").write_text("a\nc\nd\n")
    (code / "old.py").unlink()
    (code / "new é.py").write_text("1\n2\n")
    (code / "b.bin").write_bytes(b"\0\1")
    (code / "kept").chmod(0o755)
    (code / "secret\t").write_text("t\n")
    assert compare(code, before) == (
        {
            "train.py": (1, 2),
            "old.py": (1, None),
            "new é.py": (None, 2),
            "b.bin": (0, 0),
            "kept": (0, 0),
        },
        (),
    )

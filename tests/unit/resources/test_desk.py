"""What a program on a host may ask for, and what becomes of a conversation in which something goes wrong."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.mirrors import MemorySource, impatient
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceGone, SourceUnreachable
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import Archive
from trainctl.resources.desk import Desk
from trainctl.spi.provider import Node
from trainctl.spi.sources import Credential
from trainctl.weights.mirror.afresh import Origin
from trainctl_local.transport import LocalTransport

URI = "hf://acme/model"
PROGRAM = """\
import json, sys

def ask(number, **question):
    print(json.dumps({"event": {"ask": number, **question}}), flush=True)
    for line in sys.stdin:
        if line.strip():
            return json.loads(line)

def main():
    request = json.loads(sys.stdin.readline())
    answers = [ask(number, **one) for number, one in enumerate(request["questions"])]
    failure = request.get("fails") or answers[0].get("error") if request.get("raises") else None
    if failure:
        print(json.dumps({"error": failure}), flush=True)
        return 1
    print(json.dumps({"result": {"answers": answers}}), flush=True)
    return 0
"""


class Linked(MemorySource):
    """A source with a link for one file; of another it can't tell, and a third breaks it."""

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        if file.path == "gone":
            raise SourceGone("it is gone")
        if file.path == "away":
            raise SourceUnreachable("nobody answers here")
        if file.path == "broken":
            raise ZeroDivisionError
        return f"https://storage.example/{file.path}?signature=s3cr3t-of-the-link"


def program() -> Archive:
    """A program that asks what its request says."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("trainctl/__init__.py", "")
        archive.writestr("trainctl/program.py", PROGRAM)
    data = stream.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())


def asked(
    tmp_path: Path, *questions: dict[str, Any], kind: type[Linked] = Linked, **more: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """The answers to these questions of a program to which one source was offered, and what was masked."""
    node = Node("lab", "gpu-0", "local", str(tmp_path), str(tmp_path), sys.executable)
    agent = NodeAgent(node, LocalTransport(), visiting=True, archive=program())
    source = kind({"model.bin": b"x", "gone": b"y", "broken": b"z", "away": b""})
    masked: list[str] = []

    def register(value: str) -> str:
        masked.append(value)
        return value

    with Desk(agent, register, lambda event: None, None) as desk:
        resolved = source.resolve(URI, None, None)
        desk.offer(Origin(source, resolved, None, impatient(1)))
        answers = desk.call("ask", {"questions": list(questions), **more})["answers"]
    return answers, masked


def links(source: str, *paths: str) -> dict[str, Any]:
    """The question for links to files."""
    return {"want": "links", "source": source, "revision": "1", "paths": list(paths)}


def test_a_link_is_masked_from_its_birth(tmp_path: Path) -> None:
    """What signs it is known to redaction before the host has it."""
    (answer,), masked = asked(tmp_path, links(URI, "model.bin"))

    (link,) = answer["links"]
    assert link["url"].endswith("?signature=s3cr3t-of-the-link")
    assert masked == ["signature=s3cr3t-of-the-link"]


@pytest.mark.parametrize(
    "question",
    [
        links("file:///etc", "passwd"),
        links(URI, "../../etc/passwd"),
        links(URI, "model.bin", "other.bin"),
        {"want": "origin", "source": "file:///etc", "revision": ""},
        {**links("file:///etc", "passwd"), "want": "told"},
        {**links(URI, "../../etc/passwd"), "want": "told"},
    ],
)
def test_a_host_gets_nothing_but_what_it_was_offered(
    tmp_path: Path, question: dict[str, Any]
) -> None:
    """Other sources, other files and sources of its own choice are errors, and nothing is opened for it."""
    (answer,), masked = asked(tmp_path, question)

    assert not {"links", "told"} & set(answer)
    assert answer["error"]["kind"] == "SourceError"
    assert masked == []


class Telling(Linked):
    """Tells of a file what it is asked about."""

    def told(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str:
        return f"md5:{file.path}"


@pytest.mark.parametrize(("kind", "told"), [(Telling, "md5:model.bin"), (Linked, "")])
def test_a_host_is_told_of_a_file_s_bytes(kind: type[Linked], told: str, tmp_path: Path) -> None:
    """What its source tells here, where the credential is; of one that has no more to tell, what it listed."""
    question = {**links(URI, "model.bin"), "want": "told"}

    (answer,), _ = asked(tmp_path, question, kind=kind)

    assert answer["told"] == [told]


def test_an_error_here_reaches_the_host_as_what_it_is(tmp_path: Path) -> None:
    """Its kind and its words travel."""
    (answer,), _ = asked(tmp_path, links(URI, "gone"))

    assert (answer["error"]["kind"], answer["error"]["summary"]) == ("SourceGone", "it is gone")


def test_a_host_that_reaches_nobody_is_told_of_a_mirror_that_may(tmp_path: Path) -> None:
    """What a firewall keeps from it may be open to this machine; of what can't be reached from here nothing of that kind is said."""
    failure = {"kind": "SourceUnreachable", "summary": "no route", "detail": "Gave up."}
    with pytest.raises(SourceUnreachable, match="no route") as there:
        asked(tmp_path, fails=failure, raises=True)
    with pytest.raises(SourceUnreachable, match="nobody answers here") as here:
        asked(tmp_path, links(URI, "away"), raises=True)

    assert there.value.detail.startswith("Gave up. ")
    assert "mirror: {url: file:///DIRECTORY}" in there.value.detail
    assert "mirror:" not in here.value.detail


def test_nobody_waits_for_an_answer_that_cant_come(tmp_path: Path) -> None:
    """A mistake of ours ends the conversation and is raised as itself."""
    with pytest.raises(ZeroDivisionError):
        asked(tmp_path, links(URI, "broken"))


def test_the_files_of_a_source_are_told_some_at_a_time(tmp_path: Path) -> None:
    """What comes after so many, and in the end nothing; of another source nothing is told."""
    question = {"want": "files", "source": URI, "revision": "1"}

    first, last, other = asked(
        tmp_path,
        {**question, "after": 2},
        {**question, "after": 4},
        {**question, "revision": "2", "after": 0},
    )[0]

    assert [row[0] for row in first["rows"]] == ["gone", "model.bin"]
    assert last["rows"] == []
    assert other["error"]["kind"] == "SourceError"

"""Names and words: distinct classes, no one-word class names, no retired names, no words to avoid."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.support.projects.program import ROOT, files_of_project

PRODUCT = ("trainctl/", "providers/", "state/", "schemas/")
TEXTS = (*PRODUCT, "docs/", "examples/", "README.md")

ONE_WORD = re.compile(
    r"Action|Address|Agents|Allocation|Attempt|Auth|Bucket|Cache|Capabilities|"
    r"Certificate|Change|Checkpoint|Chunk|Claims|Clock|Cluster|Committer|Compute|"
    r"Coordinator|Delivery|Deployment|Diagnostic|Documents|Drift|Event|Expander|"
    r"Explanation|Expression|Facts|Failure|Fetcher|Finding|Forecast|Headers|Image|"
    r"Intent|Interpreter|Interrupt|Job|Keyring|Kind|Launch|Layout|Ledger|Lifecycle|"
    r"Listing|Liveness|Location|Machine|Manifest|Matrix|Method|Mirror|Mount|Node|Observation|"
    r"Offer|"
    r"Plan|Position|Process|Project|Provider|Proxy|Reconciler|Redactor|Reference|Relay|"
    r"Resolution|Response|Retention|Retry|Route|Runtime|Sampler|Secret|Services|"
    r"Severity|State|Stopwatch|Transport|Trust|Uploader|Upstream|Weights|Workspace"
)
"""Terms of the domain. Any other class name says of what it is: `StoredCheckpoint`, not `Kept`."""

RETIRED = re.compile(
    r"(?<![\w-])("
    r"Afresh|Arriving|Asked|AskedOnce|Beating|Beginner|Bringing|CacheShelf|Condemned|"
    r"Convoy|Crowd|Desk|DiskMap|DiskSet|DoneByTwin|Equipped|Evenness|Filling|Gathering|"
    r"GpuWish|HereMirror|HereOrigins|ImageWish|Keeper|Keeping|Lack|Lane|Looked|Looking|"
    r"Maker|Making|Mender|MirrorShelf|NoRoomYet|NodeForgot|NodeSilent|PartSource|"
    r"PartlyDone|Patience|PatientOrigin|Presence|Reception|Remain|Seat|Seating|"
    r"SecretWithheld|Shelf|SourceBusy|SourceCut|SourceGone|SourceResting|SourceWrong|"
    r"Stranger|Surroundings|TellingSource|TooSlow|Vacancy|Warden|Wish|address-taken|"
    r"cache-begins-empty|cache-elsewhere|carry_out|closed_seconds|dependency-circle|"
    r"files_outside|is_twins|keeps_secrets|lease-timeout|listing_is|made_of|misplaced-raw|"
    r"nameless-source|needless-key|not-seen|not_begun|other-gpus|put_code|quiet_seconds|"
    r"settle_seconds|through-operator|through_operator|vanishing-state|waits-for-room"
    r")(?![\w-])"
)

AVOIDED = {
    "anew|afresh|once more": "again",
    "beside": "next to, in addition to",
    "by itself": "automatically",
    "carr(y|ies|ied) on": "resume",
    "condemned|doomed": "marked for deletion",
    "goes on|go on": "continue",
    "held? against": "compare with",
    "lanes?": "queue",
    "mend(s|ed)?": "repair",
    "nobody|somebody": "no process, a user",
    "operator(?! import)": "client",
    "seats?|seated|seating": "placement",
    "told": "reported",
    "turned out|turns out": "resolved to",
    "usual places?": "default credential chain",
    "wish(es)?": "desired value, request",
}
"""Words that the documents of the field don't use for this, and what they use."""

ALLOWED = {
    "nobody|somebody": frozenset(
        {
            "docs/guides/private-sources-and-secrets.md",
            "docs/guides/several-nodes.md",
            "docs/guides/sweeps.md",
            "examples/README.md",
            "trainctl/secrets/bucket_credentials.py",
            "trainctl/weights/resolution.py",
        }
    ),
}
"""Files in which a word is right: `nobody` is a person or user."""


@cache
def _texts(prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: (ROOT / name).read_text(errors="replace")
        for name in files_of_project()
        if name.startswith(prefixes) and (ROOT / name).suffix in (".py", ".md", ".json", ".yaml")
    }


def _classes() -> Iterator[tuple[str, str]]:
    """Yield name and file of each class at the top of a module."""
    for name, text in _texts(PRODUCT).items():
        if name.endswith(".py"):
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    yield node.name, name


def test_classes_have_distinct_names() -> None:
    files = defaultdict(list)
    for name, file in _classes():
        if not name.startswith("_"):
            files[name].append(file)
    assert {name: result for name, result in files.items() if len(result) > 1} == {}


def test_class_names_of_one_word_are_terms_of_the_domain() -> None:
    words = {name for name, _ in _classes() if len(re.findall("[A-Z][a-z0-9]*", name)) == 1}
    assert {name for name in words if name[0] != "_" and not ONE_WORD.fullmatch(name)} == set()


def test_retired_names_are_gone() -> None:
    assert _lines(RETIRED, "retired") == []


def test_words_to_avoid_are_gone() -> None:
    lines = []
    for words, instead in AVOIDED.items():
        pattern = re.compile(rf"(?<!\w)({words})(?!\w)", re.IGNORECASE)
        lines += [f"{line} (instead: {instead})" for line in _lines(pattern, words)]
    assert lines == []


def _lines(pattern: re.Pattern[str], words: str) -> list[str]:
    return [
        f"{name}:{number}: {match[0]}"
        for name, text in _texts(TEXTS).items()
        if name not in ALLOWED.get(words, ())
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line)) is not None
    ]

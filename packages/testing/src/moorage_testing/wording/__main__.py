"""Count odd phrases, long sentences and long functions without a comment; fail above the limits of `limits.json`.

    python -m moorage_testing.wording                     the counts, and each limit that is exceeded
    python -m moorage_testing.wording --list docstrings packages/kube      the places of one kind

A count below its limit lowers the limit: commit the file. Limits never rise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_testing.wording import texts
from moorage_testing.wording.patterns import odd_phrases
from moorage_testing.wording.texts import LONG_SENTENCE_WORDS, Text

ROOT = Path(__file__).parents[5]
LIMITS = Path(__file__).with_name("limits.json")
SUBJECT_LETTERS = 72  # as in Kubernetes' own log
JAPANESE = "README.ja.md"
Limits = dict[str, Any]  # by the names of `KINDS`; and the commit after which subjects count


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text. `judge` returns the fault of one, or ""."""

    files: tuple[str, ...]
    read: Callable[[str, str], Iterator[Text]]
    judge: Callable[[str], str]


@dataclass(slots=True)
class Count:
    """The texts of a kind that were read, and those to write again, each with the reason."""

    texts: int = 0
    bad: list[tuple[Text, str]] = field(default_factory=list)

    def add(self, text: Text, reason: str) -> None:
        """Count a text; it is fine where `reason` is empty."""
        self.texts += 1
        if reason:
            self.bad.append((text, reason))


def odd(text: str) -> str:
    """The odd phrases of a text and better words."""
    return "; ".join(f"'{phrase}' (write: {pattern.advice})" for pattern, phrase in odd_phrases(text))


def long(text: str) -> str:
    """The number of words, where there are too many."""
    words = len(text.split())
    return f"{words} words, at most {LONG_SENTENCE_WORDS}" if words > LONG_SENTENCE_WORDS else ""


def uncommented(function: str) -> str:
    """For a function of `long_functions` that has no comment."""
    return "say why, at each step" if function.endswith(" 0 comments") else ""


def subject(text: str) -> str:
    """Too many letters, or odd phrases, in the subject of a commit."""
    return f"{len(text)} letters, at most {SUBJECT_LETTERS}" if len(text) > SUBJECT_LETTERS else odd(text)


_PYTHON = ("packages/*/src/**/*.py",)
KINDS = {
    "docstrings": Kind(_PYTHON, texts.docstrings, odd),
    "messages": Kind(_PYTHON, texts.messages, odd),
    "comments": Kind(_PYTHON, texts.comments, odd),
    "functions": Kind(_PYTHON, texts.long_functions, uncommented),
    "templates": Kind(("packages/*/src/**/*.html",), texts.template_texts, odd),
    "pages": Kind(("*.md", "docs/**/*.md"), texts.sentences, odd),
    "long in tutorial": Kind(("*.md", "docs/tutorial/*.md"), texts.sentences, long),
    "long in howto": Kind(("docs/howto/*.md",), texts.sentences, long),
    "long in explanation": Kind(("docs/explanation/*.md",), texts.sentences, long),
    "long in design": Kind(("docs/design/*.md",), texts.sentences, long),
    "commits": Kind((), texts.docstrings, subject),  # read from git
}


def count(names: Iterable[str], since: str) -> dict[str, Count]:
    """Read each file once, for all kinds that it has; `since`: commits after this one count."""
    counts = {name: Count() for name in names}
    readers: dict[str, list[str]] = {}
    for name in counts:
        for pattern in KINDS[name].files:
            readers.setdefault(pattern, []).append(name)
    for pattern, kinds in readers.items():
        for path in sorted(ROOT.glob(pattern)):
            if path.name == JAPANESE:
                continue
            content = path.read_text()
            for name in kinds:
                for text in KINDS[name].read(str(path.relative_to(ROOT)), content):
                    counts[name].add(text, KINDS[name].judge(text.text))
    if "commits" in counts:
        for text in _commits(since):
            counts["commits"].add(text, subject(text.text))
    return counts


def _commits(since: str) -> Iterator[Text]:
    """Subjects of the commits after `since`; none where git does not know it, as in a shallow clone."""
    command = ["git", "-C", str(ROOT), "log", "--format=%h %s", f"{since}..HEAD"]
    for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        commit, _, text = line.partition(" ")
        yield Text(commit, 1, text)


def main() -> int:
    """Print the counts, or the places of `--list`; return 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m moorage_testing.wording", description="Count odd phrases.")
    parser.add_argument("--list", dest="kind", choices=KINDS, help="print the places of this kind")
    parser.add_argument("paths", nargs="*", help="with --list: only files below these paths")
    options = parser.parse_args()
    limits = json.loads(LIMITS.read_text())
    counts = count([options.kind] if options.kind else KINDS, limits["commits since"])
    if options.kind:
        for text, reason in counts[options.kind].bad:
            if not options.paths or text.file.startswith(tuple(options.paths)):
                print(f"{text.file}:{text.line}: {reason}: {' '.join(text.text.split())}")
        return 0
    return _compare(counts, limits)


def _compare(counts: dict[str, Count], limits: Limits) -> int:
    """Print each count with its limit; lower the limits when all counts are within them."""
    values = {name: len(counted.bad) for name, counted in counts.items()}
    for name, value in values.items():
        share = 100 * value / max(counts[name].texts, 1)
        print(f"{name:20}{value:>6} of {counts[name].texts:5} ({share:.1f} %), limit {limits[name]}")
    exceeded, lower = judge(values, limits)
    for name in exceeded:
        print(f"\n{name}: {values[name]}, at most {limits[name]}. Write the new ones in plain words:")
        print(f"  .venv/bin/python -m moorage_testing.wording --list '{name}'")
    if lower != limits:
        LIMITS.write_text(json.dumps(lower, indent=2) + "\n")
        print(f"\nlimits are lower now: commit {LIMITS.relative_to(ROOT)}")
    return 1 if exceeded else 0


def judge(values: dict[str, int], limits: Limits) -> tuple[list[str], Limits]:
    """Names of values above their limits, and the new limits: lower when all values are within them."""
    exceeded = [name for name, value in values.items() if value > limits[name]]
    return exceeded, limits if exceeded else {**limits, **values}


if __name__ == "__main__":
    sys.exit(main())

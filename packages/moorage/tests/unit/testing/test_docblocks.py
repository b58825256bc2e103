"""Each block of the pages that newcomers follow can be run: a block that no test can run or check fails here.

Blocks with code name the file that they change, and `e2e/test_contributing.py` applies them to a copy of the tree.
Commands are parsed as `moor`, `make` and pytest parse them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from moorage_testing.docblocks import SHELL, Block, BlockError, Place, blocks_of
from moorage_testing.typedlines import parse

ROOT = Path(__file__).parents[5]
APPLIED = [ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/contributing/*.md"))]  # by e2e/test_contributing.py
FIRST_DAY = ROOT / "docs/tutorial/first-day-as-a-member.md"  # e2e/test_member_first_day.py compares what it prints
PAGES = [*APPLIED, ROOT / "README.md", ROOT / "README.ja.md", *sorted(ROOT.glob("docs/tutorial/*.md"))]
DEMO = ROOT / "packages/moorage/src/moorage/cli/demo/files"
BLOCKS = [block for page in PAGES for block in blocks_of(page, ROOT)]
CODE = ("python", "html", "markdown", "toml", "yaml")
OTHERS = (".", "cd", "export", "mkdir", "echo", "kubectl", ".venv/bin/ruff")  # commands of others, run as they are
WITH_A_FILE = ("-k", "-m", "-n")  # options of pytest with a value that is no file


def problem_of(block: Block) -> str | None:
    """Why a block cannot be run or checked; None: it can."""
    if block.place is not None:
        applied = block.language in CODE and ROOT / block.page in APPLIED
        return None if applied else "no test applies it"
    if block.language in SHELL:
        problems = [problem for line in block.commands if (problem := problem_of_line(line))]
        return "; ".join(problems) or None
    if block.language == "text":
        return None if ROOT / block.page == FIRST_DAY else "no test compares what is printed"
    return f"no sentence before it names a file to change, and {block.language!r} is no language of commands"


def problem_of_line(line: str) -> str | None:
    """Why a line cannot be typed as it is; None: it can."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&;")
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&;"):
            problem = problem_of_command(command) if command else None
            if problem:
                return problem
            command = []
        else:
            command.append(word)
    return None


def problem_of_command(words: list[str]) -> str | None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    match words:
        case ["moor", *rest]:
            try:
                parse(rest)
            except click.UsageError as error:
                return error.format_message()
            return problem_of_program(rest[rest.index("--") + 1 :]) if "--" in rest else None
        case ["make", *rest]:
            return problem_of_make(rest)
        case [".venv/bin/python", "-m", "pytest", *rest]:
            values = {rest[at + 1] for at, word in enumerate(rest) if word in WITH_A_FILE}
            files = [word for word in rest if not word.startswith("-") and word not in values]
            missing = [file for file in files if not (ROOT / file).exists()]
            return f"no such file: {missing}" if missing or not files else None
        case ["pip", "install", "moorage"]:
            return None
    return None if words[0] in OTHERS else f"no test knows the command {words[0]!r}"


def problem_of_program(words: list[str]) -> str | None:
    """Programs of the pages are those of the demo."""
    match words:
        case ["python" | "python3", file, *rest] if file.endswith(".py"):
            program = DEMO / file
            text = program.read_text() if program.exists() else ""
            unknown = [word for word in rest if word.startswith("--") and f'"{word}"' not in text]
            return f"{file} of the demo lacks {unknown or 'everything'}" if unknown or not text else None
    return None


def problem_of_make(words: list[str]) -> str | None:
    text = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        known = rf"\$\({name}\)" if is_variable else rf"^{name}:"
        if not re.search(known, text, re.MULTILINE):
            return f"the Makefile has no {word!r}"
    return None


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_can_be_run_or_checked(block):
    assert problem_of(block) is None


def a_block(text: str = "", *, page: str = "CONTRIBUTING.md", language: str = "shell", place: Place | None = None):
    return Block(page=page, line=1, language=language, text=text, place=place)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(a_block("x = 1\n", language="python"), id="code that names no file"),
        pytest.param(a_block("x = 1\n", language="ruby", place=Place(file="a.rb")), id="an unknown language"),
        pytest.param(a_block("x", page="README.md", language="python", place=Place(file="a")), id="not applied"),
        pytest.param(a_block("moor jobs\nmoor jobs --nope\n"), id="an unknown option"),
        pytest.param(a_block("moor jobs && moor nope\n"), id="an unknown command of moor"),
        pytest.param(a_block("moor run -- python nope.py\n"), id="an unknown program"),
        pytest.param(a_block("moor run -- python3 train.py --nope 1\n"), id="an unknown option of a program"),
        pytest.param(a_block("make quick; make nope\n"), id="an unknown target"),
        pytest.param(a_block("make bench NOPE=1\n"), id="an unknown variable"),
        pytest.param(a_block(".venv/bin/python -m pytest packages/nope.py\n"), id="a missing file"),
        pytest.param(a_block("curl https://example.org\n"), id="an unknown command"),
        pytest.param(a_block("hello\n", language="text"), id="output that no test compares"),
    ],
)
def test_a_block_that_nothing_can_run_is_a_failure(block):
    assert problem_of(block) is not None


@pytest.mark.parametrize(
    ("place", "want"),
    [
        pytest.param(Place(file="a.py"), "def one():\n    x = 1\n\n\ndef two():\n    x = 1\n\n\nNEW\n", id="end"),
        pytest.param(
            Place(file="a.py", how="below", text="def one"),
            "def one():\nNEW\n    x = 1\n\n\ndef two():\n    x = 1\n",
            id="below",
        ),
        pytest.param(
            Place(file="a.py", how="above", text="def two"),
            "def one():\n    x = 1\n\n\nNEW\ndef two():\n    x = 1\n",
            id="above",
        ),
        pytest.param(
            Place(file="a.py", how="in place of", text="def one", last="def two"), "NEW\n    x = 1\n", id="from to"
        ),
        pytest.param(
            Place(file="a.py", how="in place of", after="def two", text="x = 1"),
            "def one():\n    x = 1\n\n\ndef two():\nNEW\n",
            id="after",
        ),
    ],
)
def test_a_block_changes_the_file_that_its_sentence_names(tmp_path, place, want):
    (tmp_path / "a.py").write_text("def one():\n    x = 1\n\n\ndef two():\n    x = 1\n")
    a_block("NEW\n", place=place).apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == want


@pytest.mark.parametrize("text", ["x = 1", "y = 1"])
def test_a_place_that_is_not_the_only_one_is_an_error(tmp_path, text):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(BlockError, match="one is needed"):
        a_block("NEW\n", place=Place(file="a.py", how="below", text=text)).apply(tmp_path)


def test_a_page_is_read_with_its_sentences(tmp_path):
    page = tmp_path / "a.md"
    page.write_text(
        "Type:\n\n    moor jobs\n    moor gpus\n\n1. Then change it. In `a.py`,\n   below `x`:\n\n   ```python\n"
        "       y = 1\n   ```\n\n   In the new file `b.py`:\n\n   ```python\n   z = 1\n   ```\n"
    )
    assert blocks_of(page, tmp_path) == [
        Block(page="a.md", line=3, language="", text="moor jobs\nmoor gpus\n"),
        Block(
            page="a.md",
            line=9,
            language="python",
            text="    y = 1\n",
            place=Place(file="a.py", how="below", text="x"),
        ),
        Block(page="a.md", line=15, language="python", text="z = 1\n", place=Place(file="b.py")),
    ]


def test_a_block_in_a_list_needs_a_fence(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("- Type:\n\n      moor jobs\n")
    with pytest.raises(BlockError, match="needs a fence"):
        blocks_of(page, tmp_path)

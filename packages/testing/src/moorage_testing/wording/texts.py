"""Read the texts of a repository: docstrings, comments and strings of Python, templates, sentences of Markdown."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

LONG_SENTENCE_WORDS = 20  # CONTRIBUTING, "Words"
LONG_FUNCTION_LINES = 40  # about a screen; such a function has a comment at each step
WORDS_OF_A_SENTENCE = 4  # a shorter one is a label
WORDS_OF_A_MESSAGE = 3  # a shorter string is a name or a key, not something to read

_FENCE = re.compile(r"```+|~~~+")
_ITEM = re.compile(r"(?:[-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+")
_SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|FROM|WHERE|JOIN|PRAGMA|VALUES)\b")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_WithTexts = _Documented | ast.Expr | ast.Constant | ast.JoinedStr


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its place. `line` counts from 1."""

    file: str
    line: int
    text: str


def docstrings(file: str, source: str) -> Iterator[Text]:
    """Each docstring of a Python source."""
    for node in _nodes(source):
        if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
            yield Text(file, node.body[0].lineno, text)


def messages(file: str, source: str) -> Iterator[Text]:
    """Strings of a Python source that users may read: errors, help texts, logs. A field of an f-string is `{}`."""
    # docstrings are counted elsewhere; the pieces of an f-string are read as a whole
    skipped: set[int] = set()
    for node in _nodes(source):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
    for node in _nodes(source):
        if id(node) in skipped or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        text = _whole(node)
        if len(text.split()) >= WORDS_OF_A_MESSAGE and not _SQL.search(text):
            yield Text(file, node.lineno, text)


@functools.lru_cache(maxsize=1)
def _nodes(source: str) -> list[ast.AST]:
    """The nodes that hold texts; a walk is dear, and one source is read for several kinds of text."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, _WithTexts)]


def _whole(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def comments(file: str, source: str) -> Iterator[Text]:
    """Each comment of a Python source; lines that follow each other, with no code on them, are one comment."""
    block: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        alone = not token.line[:column].strip()
        if block and not (alone and line == start + len(block)):
            yield Text(file, start, " ".join(block))
            block = []
        start = start if block else line
        block.append(token.string.lstrip("#: "))
        if not alone:
            yield Text(file, start, " ".join(block))
            block = []
    if block:
        yield Text(file, start, " ".join(block))


def long_functions(file: str, source: str) -> Iterator[Text]:
    """Each function of `LONG_FUNCTION_LINES` and more: its name, lines, and comments on separate lines."""
    lines = source.splitlines()
    for node in _nodes(source):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        size = node.end_lineno - node.lineno + 1
        if size >= LONG_FUNCTION_LINES:
            body = lines[node.body[0].lineno - 1 : node.end_lineno]
            count = sum(line.lstrip().startswith("#") for line in body)
            yield Text(file, node.lineno, f"{node.name}: {size} lines, {count} comments")


def sentences(file: str, markdown: str) -> Iterator[Text]:
    """Sentences of four words and more of a page. Code blocks, headings and short cells of tables are left out.

    Inline code counts as one word, a link as its text.
    """
    for line, paragraph in _paragraphs(markdown):
        plain = re.sub(r"`[^`]*`", "`code`", paragraph)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        for sentence in _SENTENCE_END.split(plain):
            if len(sentence.split()) >= WORDS_OF_A_SENTENCE:
                yield Text(file, line, sentence)


def _paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists and long cells of tables, each with the line where it begins."""
    block: list[str] = []
    start = 1
    fence = ""
    for number, raw in enumerate([*markdown.splitlines(), ""], start=1):
        line = raw.strip()
        if fence:
            fence = "" if line.startswith(fence) else fence
            continue
        opening = _FENCE.match(line)
        row = line.startswith("|")
        indented = raw.startswith("    ") and not block
        item = _ITEM.match(line)
        if block and (opening or row or item or not line or line.startswith("#")):
            yield start, " ".join(block)
            block = []
        if opening:
            fence = opening.group(0)
        elif row:
            yield from (
                (number, cell) for cell in line.strip("|").split("|") if len(cell.split()) > LONG_SENTENCE_WORDS
            )
        elif line and not line.startswith(("#", "<!--")) and not indented:
            start = start if block else number
            block.append(line[item.end() :] if item else line)


def template_texts(file: str, template: str) -> Iterator[Text]:
    """The words between the tags of a Jinja template, one text for each line."""
    plain = re.sub(
        r"\{#.*?#\}|\{%.*?%\}|<[^>]*>", lambda match: "\n" * match.group(0).count("\n"), template, flags=re.DOTALL
    )
    plain = re.sub(r"\{\{.*?\}\}", "{}", plain)
    for number, line in enumerate(plain.splitlines(), start=1):
        if len(line.split()) >= WORDS_OF_A_MESSAGE:
            yield Text(file, number, line.strip())

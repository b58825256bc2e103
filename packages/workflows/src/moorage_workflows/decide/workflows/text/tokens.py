"""Tokens of expr-lang. https://expr-lang.org/docs/language-definition"""

from __future__ import annotations

import re
from enum import Enum, auto

from msgspec import Struct

from moorage_workflows.decide.workflows.text.errors import SyntaxProblem


class Kind(Enum):
    """The type of a token."""

    NAME = auto()
    NUMBER = auto()
    STRING = auto()
    BYTES = auto()
    SIGN = auto()  # an operator or bracket; the operators that are words too
    END = auto()


class Token(Struct, frozen=True):
    """A token of an expression.

    `value`: the operator, the name, the number as written, or the string without quotes and escapes.
    """

    kind: Kind
    value: str
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind is Kind.END else repr(self.value)


WORD_SIGNS = frozenset(
    ("in", "or", "and", "not", "matches", "contains", "startsWith", "endsWith", "let", "if", "else")
)
_SKIPPED = re.compile(r"(?:\s+|//[^\n]*\n?|/\*.*?\*/)+", re.DOTALL)
_QUOTED = re.compile(r"""[bB]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
_RAW = re.compile(r"`((?:[^`]|``)*)`")
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+"
    r"|(?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]+)?"
)
_NAME = re.compile(r"(?:[^\W\d]|\$)[\w$]*")
_SIGN = re.compile(r"\?\?|\?\.|\?|\|\||\||::|:|&&|==|!=|\*\*|<=|>=|\.\.|##?|[!*<>.,;%+^/()\[\]{}=-]")
_ESCAPE = re.compile(
    r"\\(?:u\{(?P<braced>[0-9a-fA-F]{1,6})\}|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})|(?P<plain>.))",
    re.DOTALL,
)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLAIN |= {character: character for character in "\\'\"`"}


def tokens_of(text: str) -> list[Token]:
    """Split an expression into tokens. The last token is END. Raises SyntaxProblem with the position."""
    tokens: list[Token] = []
    position = 0
    while True:
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
        if position == len(text):
            tokens.append(Token(Kind.END, "", position))
            return tokens
        token, position = _token(text, position)
        tokens.append(token)


def _token(text: str, start: int) -> tuple[Token, int]:
    if match := _QUOTED.match(text, start):
        written = match[0]
        if written[0] in "bB":
            return Token(Kind.BYTES, _unescaped_bytes(written[2:-1], start), start), match.end()
        return Token(Kind.STRING, _unescaped(written[1:-1], start), start), match.end()
    if match := _RAW.match(text, start):
        return Token(Kind.STRING, match[1].replace("``", "`"), start), match.end()
    if match := _NUMBER.match(text, start):
        end = match.end()
        if end < len(text) and (text[end].isalnum() or text[end] in "_$"):
            raise SyntaxProblem(f"invalid number {text[start : end + 1]!r}", position=start)
        return Token(Kind.NUMBER, match[0], start), end
    if match := _NAME.match(text, start):
        kind = Kind.SIGN if match[0] in WORD_SIGNS else Kind.NAME
        return Token(kind, match[0], start), match.end()
    if text.startswith("/*", start):
        raise SyntaxProblem("a comment is not closed: '*/' is missing", position=start)
    if text[start] in "\"'`":
        raise SyntaxProblem(f"a string is not closed: {text[start]} is missing", position=start)
    if match := _SIGN.match(text, start):
        return Token(Kind.SIGN, match[0], start), match.end()
    raise SyntaxProblem(f"{text[start]!r} is not expected", position=start)


def _unescaped(body: str, start: int) -> str:
    if "\\" not in body:
        return body

    def character(match: re.Match[str]) -> str:
        if (plain := match["plain"]) is not None:
            if plain not in _PLAIN:
                raise SyntaxProblem(f"a string has the unknown escape \\{plain}", position=start)
            return _PLAIN[plain]
        digits = match["braced"] or match["short"] or match["long"] or match["hex"]
        code = int(digits, 16) if digits else int(match["octal"], 8)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise SyntaxProblem(f"a string has {match[0]}, which is not a character", position=start)
        return chr(code)

    return _ESCAPE.sub(character, body)


def _unescaped_bytes(body: str, start: int) -> str:
    """Return unescaped bytes as a string, one character for each byte."""

    def byte(match: re.Match[str]) -> str:
        if (plain := match["plain"]) is not None and plain in _PLAIN:
            return _PLAIN[plain]
        code = int(match["hex"], 16) if match["hex"] else int(match["octal"], 8) if match["octal"] else 256
        if code > 255:
            raise SyntaxProblem(f"a bytes literal has the unknown escape {match[0]}", position=start)
        return chr(code)

    parts: list[str] = []
    position = 0
    for match in _ESCAPE.finditer(body):
        parts += [body[position : match.start()].encode().decode("latin-1"), byte(match)]
        position = match.end()
    parts.append(body[position:].encode().decode("latin-1"))
    return "".join(parts)

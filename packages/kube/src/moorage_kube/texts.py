"""Make untrusted texts safe to show: they cannot move the cursor, forge a line or reverse the rest.

Control characters (Cc: C0, DEL, C1), format characters (Cf: bidirectional overrides, zero-width ones, tags),
line and paragraph separators (Zl, Zp), lone surrogates (Cs) and private use (Co, of unknown appearance) are
written as escapes. For the reasons see https://www.unicode.org/reports/tr36/ and https://trojansource.codes.

Also converts Python names to their form in JSON and YAML.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}
_PLAIN = re.compile(r"[\x20-\x7e]*")
_LINES = re.compile(r"\n")


def header_text(value: bytes) -> str:
    """The value of a header: names of users come in UTF-8, from kubectl too; anything else is Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def hidden_characters(text: str) -> str:
    """Return the characters of a text that are invisible or change how others look; "" if there are none."""
    if _PLAIN.fullmatch(text):
        return ""
    return "".join(character for character in text if unicodedata.category(character) in _HIDDEN)


def visible(text: str) -> str:
    r"""The text in one line, hidden characters as escapes such as `\n`, `\e`, `\u202e`.

    A backslash is not escaped: the result is for people, not for parsers.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        _escaped(character) if unicodedata.category(character) in _HIDDEN else character for character in text
    )


def visible_lines(text: str) -> str:
    """Like `visible`, but line ends and tabs stay: for a whole text, not for a table cell or a name."""
    return "\n".join("\t".join(visible(part) for part in line.split("\t")) for line in _LINES.split(text))


def as_lines(lines: Iterable[str]) -> str:
    """The lines as one text. Line breaks inside a line are escaped, which prevents forged lines."""
    return "\n".join(map(visible, lines))


def camel(name: str) -> str:
    """Convert a Python name to the style of JSON and YAML: gpu_type → gpuType."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _escaped(character: str) -> str:
    if (short := _SHORT.get(character)) is not None:
        return short
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"

"""Regular expressions as in Go: RE2, with time that depends on the text's length only.

https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.limits import PATTERN_BYTES


@lru_cache(maxsize=32)  # of users: each may take PATTERN_BYTES
def compile_pattern(text: str) -> Any:
    """Compile a pattern.

    Raises SyntaxProblem for syntax that RE2 does not know, such as look-ahead and back references.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(text, options)
    except re2.error as exc:
        why = exc.args[0].decode("utf-8", "replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        raise SyntaxProblem(f"invalid regular expression {text!r}: {why}") from exc


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches any part of the text."""
    return compile_pattern(pattern).search(text) is not None


def expand(template: str, match: Any) -> str:
    """Expand `$1`, `${name}` in a replacement as Go does.

    `$1x` is the group named `1x`; a missing group is empty.
    """
    parts: list[str] = []
    position = 0
    while (dollar := template.find("$", position)) >= 0:
        parts.append(template[position:dollar])
        rest = template[dollar + 1 :]
        if rest.startswith("$"):
            parts.append("$")
            position = dollar + 2
            continue
        if rest.startswith("{"):
            name, closed, _ = rest[1:].partition("}")
            used = len(name) + 2
            if not closed:
                name = ""
        else:
            name = ""
            for character in rest:
                if not (character.isalnum() or character == "_"):
                    break
                name += character
            used = len(name)
        if not name or not all(character.isalnum() or character == "_" for character in name):
            parts.append("$")
            position = dollar + 1
            continue
        parts.append(_group(match, name))
        position = dollar + 1 + used
    parts.append(template[position:])
    return "".join(parts)


def _group(match: Any, name: str) -> str:
    if name.isdecimal() and name.isascii():
        number = int(name)
        return (match.group(number) or "") if number <= match.re.groups else ""
    return (match.group(name) or "") if name in match.re.groupindex else ""

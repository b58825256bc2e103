"""Versions and version constraints for sprig's semverCompare: "^1.2", ">= 1.2 < 2 || 3.x".

https://github.com/Masterminds/semver#checking-version-constraints
"""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.values import shown

_PARTS = (
    r"(?P<major>[0-9]{1,18}|[xX*])(?:\.(?P<minor>[0-9]{1,18}|[xX*]))?(?:\.(?P<patch>[0-9]{1,18}|[xX*]))?"
    r"(?:-(?P<before>[0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)
_VERSION = re.compile(rf"v?{_PARTS}")
_CONSTRAINT = re.compile(rf"(?P<sign>=<|=>|<=|>=|!=|~>|=|<|>|~|\^)?\s*v?{_PARTS}")
_SPAN = re.compile(r"(?<!\S)(\S++)\s+-\s+(\S+)")
_MAX_PARTS = 50

Key: TypeAlias = tuple[int, int, int]


class Version(Struct, frozen=True):
    """A version. `before`: the parts of its prerelease; empty for a release."""

    key: Key
    before: tuple[str, ...]


def compare(constraint: str, version: str) -> bool:
    """Whether a version meets a constraint. Raises TextError for an invalid version or constraint."""
    match = _VERSION.fullmatch(version.strip())
    if match is None or any(_is_wild(match[name]) for name in ("major", "minor", "patch") if match[name]):
        raise TextError(f"semverCompare: {shown(version)} is not a version; use a form such as 1.2.3")
    wanted = Version(_key(match), _words(match))
    alternatives = [_read(alternative) for alternative in constraint.split("||")]
    return any(all(_meets(wanted, sign, match) for sign, match in row) for row in alternatives)


def _read(alternative: str) -> list[tuple[str, re.Match[str]]]:
    row: list[tuple[str, re.Match[str]]] = []
    rest = _SPAN.sub(r">=\1 <=\2", alternative.strip())
    while rest:
        match = _CONSTRAINT.match(rest)
        if match is None or len(row) >= _MAX_PARTS:
            break
        row.append((match["sign"] or "", match))
        rest = rest[match.end() :].lstrip(" ,")
    if rest or not row:
        raise TextError(
            f"semverCompare: {shown(alternative)} is not a constraint; use a form such as ^1.2 or >=1.2"
        )
    return row


def _is_wild(part: str | None) -> bool:
    return part is None or part in "xX*"


def _key(match: re.Match[str]) -> Key:
    major, minor, patch = (
        0 if _is_wild(match[name]) else int(match[name]) for name in ("major", "minor", "patch")
    )
    return (major, minor, patch)


def _words(match: re.Match[str]) -> tuple[str, ...]:
    return tuple(match["before"].split(".")) if match["before"] else ()


def _order(version: Version) -> tuple[Key, int, list[tuple[int, int, str]]]:
    """A key to sort versions: a prerelease before its release, numbers before words."""
    words = [(0, int(word[:18]), "") if word.isdecimal() else (1, 0, word) for word in version.before]
    return (version.key, 0 if version.before else 1, words)


def _meets(version: Version, sign: str, match: re.Match[str]) -> bool:
    bound = Version(_key(match), _words(match))
    if version.before and not bound.before and sign != "!=":
        return False  # a prerelease is only meant where the constraint names one
    is_whole = not (_is_wild(match["minor"]) or _is_wild(match["patch"]))
    mine, limit = _order(version), _order(bound)
    known = (
        0 if _is_wild(match["major"]) else 1 if _is_wild(match["minor"]) else 2 if _is_wild(match["patch"]) else 3
    )
    same = version.key[:known] == bound.key[:known]
    match sign:
        case "" | "=":
            return mine == limit if is_whole and known == 3 else same and (sign != "" or mine >= limit)
        case "!=":
            return mine != limit if known == 3 else not same
        case ">":
            return mine > limit if known == 3 else version.key[:known] > bound.key[:known]
        case "<":
            return mine < limit
        case ">=" | "=>":
            return mine >= limit
        case "<=" | "=<":
            return mine <= limit if known == 3 else version.key[:known] <= bound.key[:known]
        case "~" | "~>":
            return mine >= limit and version.key[: min(known, 2)] == bound.key[: min(known, 2)]
    # "^": nothing changes up to the first part that is not 0
    if mine < limit:
        return False
    first = next((place for place, part in enumerate(bound.key[:known]) if part), max(known - 1, 0))
    return known == 0 or version.key[: first + 1] == bound.key[: first + 1]

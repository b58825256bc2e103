"""Name patterns with wildcards: `*` matches any text, `?` one character; all other characters match themselves."""

from __future__ import annotations


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern matches the whole name; upper and lower case differ.

    Needs at most as many steps as the product of both lengths. Patterns of users are never compiled by `re`.
    """
    at = place = 0
    star, resumed = -1, 0  # the last `*` of the pattern, and where in the name its text ends for now
    while at < len(name):
        if place < len(pattern) and pattern[place] == "*":
            star, resumed = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", name[at]):
            at, place = at + 1, place + 1
        elif star >= 0:
            resumed += 1
            at, place = resumed, star + 1
        else:
            return False
    return not pattern[place:].strip("*")

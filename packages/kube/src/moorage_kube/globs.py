"""Names with wildcards: `*` is any text, `?` one character, everything else stands for itself."""

from __future__ import annotations


def fits(name: str, pattern: str) -> bool:
    """Whether a whole name fits a pattern, letter case included.

    Needs at most as many steps as the product of both lengths: a pattern of users is never compiled by `re`.
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

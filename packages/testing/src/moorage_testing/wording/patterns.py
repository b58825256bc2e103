"""Phrases that Kubernetes' docs would not use, with the words to use instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CODE = re.compile(r"`[^`]*`|\"[^\"]*\"|https?://\S+")
_VERBS_OF_CLAUSES = r"know|say|tell|see|of|to|by|for|from|with|and|or|but|than|is|are|on|as"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A phrase to avoid. `odd` matches it; `advice` says how to write instead."""

    name: str
    odd: re.Pattern[str]
    advice: str


def _pattern(name: str, odd: str, advice: str, *, flags: int = re.IGNORECASE) -> Pattern:
    return Pattern(name=name, odd=re.compile(odd, flags), advice=advice)


PATTERNS = (
    _pattern("what", r"\bwhat(ever)?\b(?![^.!?]*\?)", "use a noun: 'the fields that a run view needs'"),
    _pattern(
        "who",
        rf"(?:^|[.;:,(—] |\b(?:{_VERBS_OF_CLAUSES})s? )(?:who|whom|whoever)\b(?![^.!?]*\?)",
        "use a noun: 'the user who', 'the owner'",
    ),
    _pattern(
        "whose", rf"(?:^|[.;:,(] |\b(?:{_VERBS_OF_CLAUSES})s? )whose\b(?![^.!?]*\?)", "use a noun: 'the owner of'"
    ),
    _pattern("stand", r"\b(?:stands?|stood|standing)\b(?! (?:for|in for)\b)", "is, has, exists"),
    _pattern("bear", r"\b(?:bears?|bearing|bore|borne)\b", "has"),
    _pattern("tell", r"\b(?:tells?|told|telling)\b", "report, show, say"),
    _pattern("keep", r"\bkept\b|\bkeeps? (?:of|what|no|nothing)\b", "store, save, retain"),
    _pattern("go", r"\b(?:gone|goes|went)\b", "deleted, missing; is sent, is deleted"),
    _pattern(
        "back",
        r"\b(?:give[sn]?|gave|giving) (?:it |them |the \w+ )?back\b|\bbring\w* (?:it |them )?back\b",
        "return, release, restore",
    ),
    _pattern(
        "no X is",
        r"\b[Nn]o \w+(?: \w+)? (?:is|are|was|were|has|have|can|may|must|will|does|do|needs?)\b",
        "'all X are …', 'X is not …'",
        flags=0,
    ),
    _pattern(
        "nobody",
        r"\b(?:nobody|somebody|anybody|everybody|no one|someone|anyone|everyone)\b",
        "name them: users, members, administrators, clients",
    ),
    _pattern("beside", r"\bbesides?\b", "next to, in addition to, and"),
    _pattern("own", r"\bof (?:its|their|our|one's|his|her|your) own\b", "its own X, a separate X"),
    _pattern(
        "archaic",
        r"\b(?:anew|for want of|as good as|becomes? of|became of|in vain|reckon\w*|nought|heed\w*|at hand|nonsense"
        r"|thereof|ought|by and by|lately|good for nothing|as it were|(?:is|are) yours to|once more"
        r"|no longer there|not yet there|makes? out|for (?:\w+ ){1,3}alone)\b",
        "say it as Kubernetes' docs do",
    ),
)


_ANY = re.compile("|".join(f"(?:{pattern.odd.pattern})" for pattern in PATTERNS), re.IGNORECASE)


def odd_phrases(text: str) -> list[tuple[Pattern, str]]:
    """The odd phrases of a text, in the order of `PATTERNS`. Code, quotations and addresses do not count."""
    plain = _CODE.sub(" X ", " ".join(text.split()))
    return [
        (pattern, match.group(0).strip()) for pattern in PATTERNS for match in [pattern.odd.search(plain)] if match
    ]

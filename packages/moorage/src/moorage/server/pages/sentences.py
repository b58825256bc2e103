"""Translate sentences of decisions, errors and Kubernetes into the language of the user.

They are made in English far from any page: the command line, events and programs have them too. A
catalogue (`catalogues/LANGUAGE.sentences.po`) has their shapes, with values: "needs {what}; none is
free". A value may be a sentence itself. A text without a known shape stays English, and pages mark
it so.

A test (`test_sentences.py`) finds shapes that are no longer in the sources.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import re2

from moorage.server.pages.texts import ENGLISH, catalogue

LONGEST = 300  # characters: a longer text is no sentence of ours, and shapes would take long to fit
_PARTS = (("; ", "。"), (". ", "。"), (", ", "、"))  # between sentences, and how a translation joins them
_VALUE = re.compile(r"\{(\w+)\}")
_THINGS = "run|pod|workspace|map|volume|dataset|workflow|schedule|node|tenant|user|budget|reservation|container"
_KINDS = {  # first letters of a value's name → its pattern; others: any text
    "n_": r"\d[\d,.]*",
    "name": r"\S*[^\s.]",
    "node": r"\S*[^\s.]",
    "who": r"\S+",
    "amount": r"\d[\w.,]*(?: [\w×/.-]+){0,2}",
    "thing": rf"(?:step \S+ of |session of |password of |idle policy |items to )?(?:(?:{_THINGS}) )?\S+",
}
_NAMES = ("name", "node", "who")  # values that are not translated: a budget may have the name "month"


def in_words(text: str, tag: str) -> str:
    """Translate a text: from a catalogue, or by a known sentence pattern; unchanged if neither has it."""
    if tag == ENGLISH or not text:
        return text
    return catalogue(tag).get(text) or catalogue(f"{tag}.sentences").get(text) or _sentence(text, tag)


@lru_cache(4096)
def _sentence(text: str, tag: str) -> str:
    if len(text) > LONGEST:
        return text
    for tried in (text, text[:1].lower() + text[1:]):
        for shape, has_stop, translation in _shapes(tag):
            if (has_stop or not tried.endswith(".")) and (match := shape.fullmatch(tried)):
                values = match.groupdict().items()
                return translation.format(
                    **{key: value if key.startswith(_NAMES) else in_words(value, tag) for key, value in values}
                )
    if text.endswith(".") and (whole := in_words(text[:-1], tag)) != text[:-1]:
        return f"{whole}。"
    for between, joint in _PARTS:
        if between in text:
            parts = text.split(between)
            translated = [in_words(part, tag) for part in parts]
            if translated != parts:
                return joint.join(translated)
    return text


@cache
def _shapes(tag: str) -> tuple[tuple[Any, bool, str], ...]:
    """The shapes of a language, those with the most fixed letters first."""
    known = catalogue(f"{tag}.sentences")
    order = sorted(known, key=lambda shape: (-len(_VALUE.sub("", shape)), shape))
    return tuple((_pattern(shape), shape.endswith("."), known[shape]) for shape in order)


def _pattern(shape: str) -> Any:
    """A shape as an expression of RE2, since users' names are in the sentences, several in one."""
    pieces = _VALUE.split(shape)
    texts, names = pieces[::2], pieces[1::2]
    pattern = re2.escape(texts[0])
    for name, text in zip(names, texts[1:], strict=True):
        value = next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), ".+?")
        pattern += f"(?P<{name}>{value}){re2.escape(text)}"
    return re2.compile(pattern)

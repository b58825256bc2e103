"""The pages in the language of the user: texts of templates, and texts that Python makes.

The sources are English, and so are the keys of the catalogues (`catalogues/LANGUAGE.po` of each
package, as gettext has them). A template is translated when it is loaded, so that drawing a page
costs the same in every language: each run of text between two tags or statements is one key, with
its expressions and inline tags in it:

    and {{ more }} more; <code>moor jobs</code> lists all

Python says `say("{count} of {total} free", count=3, total=8)`. A test
(`test_texts.py`) finds texts without a translation, and translations without a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import resources

from moorage.features import load_all

ENGLISH = "en"
LANGUAGES: Mapping[str, str] = {ENGLISH: "English", "ja": "日本語"}
"""Language tag → its name in itself."""

_SPOKEN: ContextVar[str] = ContextVar("language", default=ENGLISH)

_VALUE = r"\{\{.*?\}\}"
_STATEMENT = r"\{%.*?%\}|\{#.*?#\}"
_TAG = rf'<[a-zA-Z/!](?:{_VALUE}|{_STATEMENT}|"(?:{_VALUE}|{_STATEMENT}|[^"])*"|[^">])*>'
_INLINE = rf"<(?P<element>code|strong|em|kbd)>(?:{_VALUE}|[^<])*</(?P=element)>"  # these may be inside a text
_SCRIPT = r"<script type=\"application/json\">.*?</script>"
_PIECES = re.compile(
    rf"(?P<script>{_SCRIPT})|(?P<inline>{_INLINE})|(?P<tag>{_TAG})|(?P<statement>{_STATEMENT})|(?P<value>{_VALUE})",
    re.S,
)
_ATTRIBUTES = re.compile(
    rf'(?P<before>\s(?:title|aria-label|placeholder|alt|data-label|data-live|data-lost|data-empty)=")'
    rf'(?P<text>(?:{_VALUE}|[^"{{]|\{{(?!%))*)"',
    re.S,
)
_CALLS = re.compile(r'(?<![\w.])_\("(?P<text>[^"]+)"\)')
_WORD = re.compile(r"[A-Za-z]{2,}")
_EXPRESSIONS = re.compile(rf"{_VALUE}|</?(?:code|strong|em|kbd)>|\{{\w+\}}", re.S)
_NOT_WORDS = re.compile(rf"{_VALUE}|<code>.*?</code>|</?(?:strong|em|kbd)>|&\w+;", re.S)


def language() -> str:
    """The language of the current request."""
    return _SPOKEN.get()


@contextmanager
def speaking(tag: str) -> Iterator[None]:
    """Use a language, one of LANGUAGES, for all texts inside the `with` block."""
    token = _SPOKEN.set(tag)
    try:
        yield
    finally:
        _SPOKEN.reset(token)


def say(text: str, **values: object) -> str:
    """A text in the language of the current request, with its {values}; English where the catalogue lacks
    it.
    """
    translated = catalogue(language()).get(text, text)
    return translated.format(**values) if values else translated


def N_(text: str) -> str:
    """Mark a text for the catalogue; `say(…)` or `_(…)` translates it later."""
    return text


@cache
def catalogue(tag: str) -> Mapping[str, str]:
    """The translations of English texts, of the platform and of all features; empty for English.

    polib (12 ms) is imported for other languages only.
    """
    if tag == ENGLISH:
        return {}
    import polib

    folders = [resources.files(package) for package in ("moorage.server.pages", *load_all("templates"))]
    files = [folder.joinpath("catalogues", f"{tag}.po") for folder in folders]
    entries = (entry for file in files if file.is_file() for entry in polib.pofile(file.read_text("utf-8")))
    return {entry.msgid: entry.msgstr for entry in entries if entry.msgstr}


def preferred(accept: str, chosen: str = "") -> str:
    """The language for an Accept-Language header; `chosen`, from a cookie, comes first. English where none
    fits.

    https://www.rfc-editor.org/rfc/rfc9110#name-accept-language
    """
    if chosen in LANGUAGES:
        return chosen
    wanted: list[tuple[float, int, str]] = []
    for place, part in enumerate(accept.split(",")[:20]):
        tag, _, weight = part.strip().partition(";")
        primary = tag.strip().partition("-")[0].lower()
        quality = _quality(weight)
        if primary in LANGUAGES and quality > 0:
            wanted.append((-quality, place, primary))
    return min(wanted)[2] if wanted else ENGLISH


def _quality(weight: str) -> float:
    name, _, number = weight.strip().partition("=")
    if not name:
        return 1.0
    try:
        return float(number) if name.strip().lower() == "q" else 1.0
    except ValueError:
        return 0.0


def translated(source: str, texts: Mapping[str, str]) -> str:
    """A template's source with its texts replaced; texts that `texts` lacks stay English."""
    return "".join(_replace(kind, piece, texts) for kind, piece in _split(source))


def texts_of(source: str) -> list[str]:
    """Every text of a template that needs a translation, in the form of catalogue keys."""
    found_texts: dict[str, None] = {}
    for kind, piece in _split(source):
        if kind == "text":
            if is_prose(piece):
                found_texts[key_of_text(piece)] = None
        elif kind == "tag":
            for match in _ATTRIBUTES.finditer(piece):
                if is_prose(match["text"]):
                    found_texts[key_of_text(match["text"])] = None
        for match in _CALLS.finditer(piece):
            found_texts[match["text"]] = None
    return list(found_texts)


def key_of_text(text: str) -> str:
    """A text in the form of catalogue keys: each run of blanks becomes a single blank."""
    return " ".join(text.split())


def is_prose(text: str) -> bool:
    """Whether a text has words, apart from values and commands."""
    return bool(_WORD.search(_NOT_WORDS.sub(" ", text)))


def values_in(text: str) -> list[str]:
    """The expressions and inline tags in a text, sorted. A translation must have the same."""
    return sorted(_EXPRESSIONS.findall(text))


def _split(source: str) -> Iterator[tuple[str, str]]:
    """Split a template into pieces: "text" (with values and inline tags inside), "tag" or "statement"."""
    text: list[str] = []
    at = 0
    for match in _PIECES.finditer(source):
        text.append(source[at : match.start()])
        at = match.end()
        if match["value"] or match["inline"]:
            text.append(match[0])
            continue
        if whole := "".join(text):
            yield "text", whole
        text = []
        yield "tag" if match["tag"] else "statement", match[0]
    if whole := "".join([*text, source[at:]]):
        yield "text", whole


def _replace(kind: str, piece: str, texts: Mapping[str, str]) -> str:
    if kind == "text" and is_prose(piece):
        replaced = texts.get(key_of_text(piece))
        if replaced is not None:
            begin = piece[: len(piece) - len(piece.lstrip())]
            end = piece[len(piece.rstrip()) :]
            piece = f"{begin}{replaced}{end}"
    elif kind == "tag":
        piece = _ATTRIBUTES.sub(
            lambda match: f'{match["before"]}{texts.get(key_of_text(match["text"]), match["text"])}"', piece
        )
    return piece

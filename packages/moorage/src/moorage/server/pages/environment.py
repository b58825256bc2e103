"""Jinja's environment for the pages: templates in one language, and functions for their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moorage.features import load_all
from moorage.server.pages.sentences import in_words
from moorage.server.pages.texts import ENGLISH, LANGUAGES, catalogue, is_prose, translated

if TYPE_CHECKING:
    from jinja2 import Environment


def make_environment(tag: str) -> Environment:
    """Jinja's environment for one language: `_(…)` translates a text, `in_english(…)` marks an untranslated
    one.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from jinja2.ext import Extension
    from markupsafe import Markup

    texts = catalogue(tag)

    def in_english(text: object) -> Markup:
        """The HTML attribute for English text on a page in another language."""
        is_marked = tag != ENGLISH and is_prose(str(text)) and in_words(str(text), tag) == text
        return Markup(' lang="en"') if is_marked else Markup("")

    class Translate(Extension):
        def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:  # noqa: ARG002
            return translated(source, texts)

    packages = [package.__name__ for package in load_all("templates")]
    extensions: list[Any] = [Translate] if texts else []
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in ("moorage.server.pages", *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=extensions,
    )
    environment.globals |= {
        "in_english": in_english,
        "_": lambda text: in_words(text, tag),
        "language": tag,
        "languages": LANGUAGES,
    }
    return environment

"""The texts of the pages of one package, and its catalogues of translations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import polib

from moorage.server.pages.texts import texts_of, values_in

ALWAYS_ENGLISH = {'hx-ext="sse" sse-connect="/events/page?seen={{ mark }}"'}  # an attribute in its own block


class PageTexts:
    """The texts of a package that has page modules and the folders `templates` and `catalogues`."""

    def __init__(self, package: str) -> None:
        self._files = resources.files(package)

    def catalogue(self, tag: str) -> Any:
        return polib.pofile(self._files.joinpath("catalogues", f"{tag}.po").read_text("utf-8"))

    def templates(self) -> dict[str, str]:
        """Name → source."""
        files = self._files.joinpath("templates").iterdir()
        return {file.name: file.read_text("utf-8") for file in files if file.name.endswith(".html")}

    def _modules(self) -> list[ast.Module]:
        return [ast.parse(file.read_text("utf-8")) for file in self._files.iterdir() if file.name.endswith(".py")]

    def wanted(self) -> set[str]:
        """Return the texts that must have a translation."""
        texts = {text for source in self.templates().values() for text in texts_of(source)}
        return (texts | {text for tree in self._modules() for text in _said(tree)}) - ALWAYS_ENGLISH

    def there(self) -> set[str]:
        """Return all texts that a page may show: the wanted texts, and constants that templates show by `_(…)`."""
        texts = set(ALWAYS_ENGLISH)
        for source in self.templates().values():
            texts |= set(texts_of(source)) | set(re.findall(r'"([^"{}]+)"', source))
        constants = (node for tree in self._modules() for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts |= {node.value for node in constants if isinstance(node.value, str)}
        texts |= {text.lower() for text in texts}  # titles of lists, within a sentence
        return texts | {text[:-1] for text in texts if text.endswith("s")}  # "jobs": one job

    def missing(self, tag: str) -> set[str]:
        """Return the texts without a translation in this catalogue."""
        return self.wanted() - {entry.msgid for entry in self.catalogue(tag) if entry.msgstr}

    def wrong_values(self, tag: str) -> list[str]:
        """Return the texts with other values in their translation."""
        return [entry.msgid for entry in self.catalogue(tag) if _bare(entry.msgid) != _bare(entry.msgstr)]


def _said(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in the code of a module: the first argument of say() and N_()."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="say" | "N_"), args=[ast.Constant(value=str(text)), *_]):
                yield text


def _bare(text: str) -> list[str]:
    """Return the values in a text, without quoted text in them, because a translation may change it."""
    return [re.sub(r'"[^"]*"|\'[^\']*\'', '""', value) for value in values_in(text)]

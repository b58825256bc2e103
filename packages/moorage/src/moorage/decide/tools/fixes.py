"""Apply the edits of findings to the checked text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from moorage.decide.admission.fields import Path, at
from moorage.decide.tools.lint import BYTES_MAX, LintFinding
from moorage.decide.tools.yamledits import Add, Edit, Patch, Remove, nodes_of, patched, patches_of
from moorage_kube.errors import DocumentError
from moorage_kube.quantity import amount
from moorage_kube.yamldocuments import parse_yaml_documents


def fixed_text(text: str, findings: Iterable[LintFinding]) -> str:
    """The text of one file with every edit of its findings; unsafe edits are left out.

    The result is read again: its content is that of the text with the edits, and nothing else.
    """
    edits = _joined(findings)
    if not edits:
        return text
    roots = nodes_of(text)
    before = _documents(text)
    if before is None:
        return text  # some document of it cannot be read: then nothing could be compared
    patches: list[Patch] = []
    kept: list[tuple[int, Edit]] = []
    for document, edit in edits:
        made = patches_of(text, roots[document], edit)
        if made:
            patches += made
            kept.append((document, edit))
    result = patched(text, patches)
    if _documents(result) == _edited(before, kept):
        return result
    for document, edit in kept:  # rarely: by itself, so that the others are not lost with it
        alone = patched(text, patches_of(text, nodes_of(text)[document], edit) or [])
        if _documents(alone) == _edited(_documents(text), [(document, edit)]):
            text = alone
    return text


def _joined(findings: Iterable[LintFinding]) -> list[tuple[int, Edit]]:
    """(document, edit) without doubles: where several targets ask for one key, the larger amount."""
    adds: dict[tuple[int, Path], dict[str, str]] = {}
    removes: dict[tuple[int, Path], frozenset[str]] = {}
    for finding in findings:
        match finding.edit:
            case Add(path=path, values=values):
                held = adds.setdefault((finding.document, path), {})
                for key, value in values.items():
                    if key not in held or amount(key, value) > amount(key, held[key]):
                        held[key] = value
            case Remove(path=path, keys=keys):
                removes[finding.document, path] = removes.get((finding.document, path), frozenset()) | keys
    edits: list[tuple[int, Edit]] = [
        (document, Add(path=path, values=values)) for (document, path), values in adds.items()
    ]
    edits += [(document, Remove(path=path, keys=keys)) for (document, path), keys in removes.items()]
    return edits


def _documents(text: str) -> list[Any] | None:
    try:
        return parse_yaml_documents(text, bytes_max=BYTES_MAX)
    except DocumentError:
        return None


def _edited(documents: list[Any] | None, edits: Sequence[tuple[int, Edit]]) -> list[Any] | None:
    """Apply the edits to the documents, in place."""
    for number, edit in edits if documents is not None else ():
        assert documents is not None
        document = documents[number]
        match edit:
            case Add(path=path, values=values):
                held = document
                for step in path:
                    if isinstance(step, str) and held.get(step) is None:
                        held[step] = {}
                    held = held[step]
                for key, value in values.items():
                    held.setdefault(key, value)
            case Remove(path=path, keys=keys):
                held = at(document, path)
                for key in keys:
                    held.pop(key, None)
    return documents

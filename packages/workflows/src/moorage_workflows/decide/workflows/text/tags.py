"""Tags in a document: `{{inputs.parameters.x}}`, and `{{=…}}` with an expression.

A document is written as JSON, its tags are replaced in that text, and it is read again. So a tag may be in a
key, and a value cannot break the document.
https://argo-workflows.readthedocs.io/en/latest/variables/
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from moorage.decide.evaluation import STRING_CHARACTERS, TextError, TooMuchWork, current
from moorage_workflows.decide.workflows.text.errors import AbsentValue, SyntaxProblem, UnresolvedTag
from moorage_workflows.decide.workflows.text.expressions import Scope, compile_expression, expression_text
from moorage_workflows.decide.workflows.text.values import type_name

T = TypeVar("T")

NESTED_MAX = 1000  # tags within tags of one document
_END_OF_STRING = re.compile(r'(?<!\\)(?:\\\\)*(")')
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Reference(Struct, frozen=True):
    """A tag of a document. `text`: its content, trimmed, without `=`; `path`: such as spec.args[1]."""

    path: str
    text: str
    is_expression: bool


def substitute(
    document: T, scope: Mapping[str, Any], *, allow_unresolved: bool = True, strict: Sequence[str] = ()
) -> T:
    """Replace the tags of a document with values of the scope.

    A simple tag takes a string of the scope; None means an output that is absent. A tag with a variable that
    is not in scope stays as it is, unless `allow_unresolved` is false or its name begins with one of
    `strict` ("steps.", "tasks."): then UnresolvedTag is raised. An expression that fails for another reason
    stays as it is too, unless `allow_unresolved` is false or there is any `strict`. A document without tags
    is returned as it is.

    With any options, raises AbsentValue for a simple tag of an absent output, SyntaxProblem for an
    expression that cannot be read, and TooMuchWork past the limits; TextError for the rest.
    """
    try:
        written = msgspec.json.encode(document).decode()
    except (OverflowError, ValueError):  # a number of more than 64 bits, or half a surrogate pair
        written = json.dumps(document)
    if "{{" not in written:
        return document
    current().spend(1 + len(written) // 32)  # it is read, and made again
    replaced = _Substitution(scope, allow_unresolved=allow_unresolved, strict=strict).replace(written)
    if replaced == written:
        return document
    try:
        read: T = msgspec.json.decode(replaced)
    except msgspec.DecodeError as exc:
        raise TextError(f"the document is not JSON any more after its tags were replaced: {exc}") from exc
    return read


def substitute_text(
    text: str, scope: Mapping[str, Any], *, allow_unresolved: bool = True, strict: Sequence[str] = ()
) -> str:
    """Replace the tags of a string, as `substitute` does for a document."""
    return substitute(text, scope, allow_unresolved=allow_unresolved, strict=strict)


def references(document: Any) -> list[Reference]:
    """The tags of a document, keys included, in the order of the document; of nested tags the innermost."""
    return [Reference(path, *_kind_of(tag)) for path, text in _strings(document, "") for tag in _tags(text)]


def _kind_of(tag: str) -> tuple[str, bool]:
    return (tag[1:].strip(), True) if tag.startswith("=") else (tag.strip(), False)


def _tags(text: str) -> Iterator[str]:
    start = text.find("{{")
    while start >= 0:
        end = text.find("}}", start)
        if end < 0:
            return
        tag = text[start + 2 : end]
        if not tag.startswith("="):
            tag = tag.rpartition("{{")[2]
        yield tag
        start = text.find("{{", end + 2)


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, element in value.items():
            plain = _PLAIN_KEY.fullmatch(key)
            inner = (f"{path}.{key}" if path else key) if plain else f"{path}[{json.dumps(key)}]"
            if not plain:
                yield inner, key
            yield from _strings(element, inner)
    elif isinstance(value, (list, tuple)):
        for index, element in enumerate(value):
            yield from _strings(element, f"{path}[{index}]")


class _Substitution:
    """Replaces the tags of one document in JSON, once."""

    def __init__(self, scope: Mapping[str, Any], *, allow_unresolved: bool, strict: Sequence[str]) -> None:
        self.flat = scope
        self.scope = Scope(scope)
        self.allow_unresolved = allow_unresolved
        self.strict = tuple(prefix.removesuffix(".") for prefix in strict)

    def replace(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        nested = 0
        size = 0
        end = 0
        looked = 0  # before this, no string ends in the tag
        budget = current()
        while (start := text.find("{{", position)) >= 0:
            if end < start + 2:  # else it is the end of this tag too: each character is looked at once
                end = text.find("}}", start + 2)
            if end < 0:
                raise SyntaxProblem(f"tag {text[start : start + 60]!r} is not closed: '}}}}' is missing")
            if quote := _END_OF_STRING.search(text, max(start + 2, looked), end):
                # the string ends before the tag does
                if text.startswith("=", start + 2):
                    raise SyntaxProblem(f"tag {text[start : start + 60]!r} is not closed: '}}}}' is missing")
                parts.append(text[position : quote.end()])
                position = quote.end()
                continue
            tag = text[start + 2 : end]
            parts.append(text[position:start])
            position = end + 2
            if tag.startswith("="):
                value = self.expression(tag)
            else:
                name = tag.strip()
                try:
                    value = _escaped(self.flat[name], name)
                except KeyError:
                    inner = self.nested(tag)
                    if inner is None:
                        value = self.unresolved(tag)
                    else:
                        nested += 1
                        if nested > NESTED_MAX:
                            raise TooMuchWork(
                                f"the document has more than {NESTED_MAX:,} tags within tags"
                            ) from None
                        # the tag around it is looked at again, with the value in it
                        budget.spend(len(text) // 64)
                        text = "{{" + inner + text[position:]
                        position = end = 0
                        looked = 2 + tag.rfind("{{")
                        continue
            size += len(value)
            budget.write(len(value))
            if size > STRING_CHARACTERS:
                raise TooMuchWork(
                    f"the values of a document's tags are longer than {STRING_CHARACTERS:,} characters"
                )
            parts.append(value)
        parts.append(text[position:])
        return "".join(parts)

    def nested(self, tag: str) -> str | None:
        """Replace the inner tag of a nested tag by its value; None if the inner tag is not in scope."""
        place = tag.rfind("{{")
        if place <= 0:
            return None
        name = tag[place + 2 :].strip()
        if name not in self.flat:
            return None
        return tag[:place] + _escaped(self.flat[name], name)

    def unresolved(self, tag: str) -> str:
        name = _plain(tag).strip()
        if not self.allow_unresolved or self.is_strict(name):
            raise UnresolvedTag(name, f"tag {{{{{name}}}}} is not known here")
        return "{{" + tag + "}}"

    def is_strict(self, name: str) -> bool:
        return any(name == prefix or name.startswith(prefix + ".") for prefix in self.strict)

    def expression(self, tag: str) -> str:
        """The result of `=…`, ready for insertion into JSON."""
        text = _plain(tag[1:])
        program = compile_expression(text)
        stays = "{{" + tag + "}}"
        for path in program.late:
            if not self.scope.has(path):
                if not self.allow_unresolved or self.is_strict(".".join(path)):
                    raise UnresolvedTag(".".join(path))
                return stays
        try:
            value = program.run(self.scope, None)
            if value is None:
                raise AbsentValue(text.strip())
            result = expression_text(value)
        except TooMuchWork:
            raise
        except UnresolvedTag as exc:
            if not self.allow_unresolved or self.is_strict(exc.tag):
                raise
            return stays
        except TextError as exc:
            if not self.allow_unresolved or self.strict:
                raise type(exc)(*_again(exc, text)) from exc
            return stays
        return _escaped(result, text)


def _again(exc: TextError, text: str) -> tuple[str, ...]:
    """Arguments that make the same error again, with the expression in its message."""
    if isinstance(exc, AbsentValue):
        return (exc.tag,)
    return (f"expression {text.strip()[:120]!r} fails: {exc.message}",)


def _plain(tag: str) -> str:
    """Return the tag without JSON escapes."""
    if "\\" not in tag:
        return tag
    try:
        plain: str = msgspec.json.decode(f'"{tag}"')
    except msgspec.DecodeError as exc:
        raise SyntaxProblem(f"tag {tag[:60]!r} is cut within an escape") from exc
    return plain


def _escaped(value: Any, name: str) -> str:
    """A value as written within a string of JSON."""
    if value is None:
        raise AbsentValue(name)
    if not isinstance(value, str):
        raise TextError(
            f"tag {{{{{name}}}}} is of type {type_name(value)}, not a string",
            hint=f"use an expression, such as {{{{=toJson({name})}}}}",
        )
    try:
        return msgspec.json.encode(value)[1:-1].decode()
    except ValueError:  # half a surrogate pair
        return json.dumps(value)[1:-1]

"""A strict evaluator of the few template words that our chart uses; anything else is an error.

Helm itself is a Go program that neither PyPI nor Debian has. Where it is on PATH, the tests compare with it too.
What these words mean is Go's text/template and Sprig:
https://pkg.go.dev/text/template, https://masterminds.github.io/sprig/
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml

_ACTION = re.compile(r"\{\{(-)?\s*(.*?)\s*(-)?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(urlParse (\.[\w.]+)\)\.hostname|\||[^\s|]+')


class TemplateError(Exception):
    """A word or a form that our templates may not use."""


def render(text: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a template."""
    output = "".join(_block(_tokens(text), {"Values": values}, ends=()))
    return [obj for obj in yaml.safe_load_all(output) if obj]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """("text" or "action", content), with the white space cut that the dashes ask for."""
    position, trims_next = 0, False
    for match in _ACTION.finditer(text):
        literal = text[position : match.start()]
        if trims_next:
            literal = literal.lstrip()
        yield "text", literal.rstrip() if match[1] else literal
        yield "action", match[2]
        position, trims_next = match.end(), bool(match[3])
    yield "text", text[position:].lstrip() if trims_next else text[position:]


def _block(tokens: Iterator[tuple[str, str]], scope: Any, *, ends: tuple[str, ...], dot: Any = None) -> list[str]:
    """The output up to one of `ends`, which is put last, without its marks."""
    output: list[str] = []
    for kind, content in tokens:
        if kind == "text":
            output.append(content)
            continue
        word, _, rest = content.partition(" ")
        if content in ends:
            return [*output, content]
        if word in ("if", "with", "range"):
            output += _branch(word, rest, tokens, scope, dot)
        elif word in ("else", "end", "define", "include", "template", "block"):
            raise TemplateError(f"{content!r} is not expected here")
        else:
            output.append(str(_value(content, scope, dot)))
    if ends:
        raise TemplateError(f"no {' or '.join(ends)} at the end")
    return output


def _branch(word: str, rest: str, tokens: Iterator[tuple[str, str]], scope: Any, dot: Any) -> list[str]:
    value = _value(rest, scope, dot)
    body: list[tuple[str, str]] = []
    otherwise: list[tuple[str, str]] = []
    part, depth = body, 0
    for kind, content in tokens:
        if kind == "action":
            opens = content.partition(" ")[0] in ("if", "with", "range")
            if content == "end" and not depth:
                break
            if content == "else" and not depth:
                part = otherwise
                continue
            depth += 1 if opens else -1 if content == "end" else 0
        part.append((kind, content))
    else:
        raise TemplateError(f"{word} {rest} has no end")
    if not value:
        return _block(iter(otherwise), scope, ends=(), dot=dot)
    if word == "range":
        return [text for item in value for text in _block(iter(body), scope, ends=(), dot=item)]
    return _block(iter(body), scope, ends=(), dot=value if word == "with" else dot)


def _value(expression: str, scope: Any, dot: Any) -> Any:
    value: Any = None
    piped = False
    for part in _split(expression):
        head, *arguments = part
        if piped:
            arguments = [*arguments, value]  # a pipeline's value is the last argument
            known = [*map(lambda word: _atom(word, scope, dot), arguments[:-1]), value]
        else:
            known = [_atom(word, scope, dot) for word in arguments]
        value = _call(head, known, scope, dot) if known else _call_or_atom(head, scope, dot)
        piped = True
    return value


def _split(expression: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for match in _WORD.finditer(expression):
        if match[0] == "|":
            parts.append([])
        else:
            parts[-1].append(match[0])
    return parts


def _call_or_atom(word: str, scope: Any, dot: Any) -> Any:
    return _atom(word, scope, dot)


def _call(name: str, arguments: list[Any], scope: Any, dot: Any) -> Any:
    match name, arguments:
        case "quote", [value]:
            return json.dumps(str(value), ensure_ascii=False)
        case "default", [fallback, value]:
            return value or fallback
        case "toYaml", [value]:
            return yaml.safe_dump(value, sort_keys=True).rstrip("\n")
        case "nindent", [spaces, text]:
            return "\n" + "\n".join(" " * int(spaces) + line for line in str(text).splitlines())
        case "hasPrefix", [prefix, text]:
            return str(text).startswith(prefix)
    raise TemplateError(f"{name} with {len(arguments)} arguments is not used by our templates")


def _atom(word: str, scope: Any, dot: Any) -> Any:
    if word == ".":
        return dot
    if word.startswith('"'):
        return json.loads(word)
    if word.isdigit():
        return int(word)
    url = re.fullmatch(r"\(urlParse (\.[\w.]+)\)\.hostname", word)
    if url is not None:
        return urlsplit(str(_atom(url[1], scope, dot))).hostname or ""
    if not re.fullmatch(r"\.Values(\.[A-Za-z]\w*)+", word):
        raise TemplateError(f"{word!r} is not used by our templates")
    value: Any = scope
    for name in word.strip(".").split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise TemplateError(f"{word} is in no values")  # Helm gives nil: a misspelt name
        value = value[name]
    return value

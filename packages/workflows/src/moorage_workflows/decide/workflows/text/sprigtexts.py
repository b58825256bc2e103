"""Functions of sprig for strings, paths, encodings, digests and patterns. https://masterminds.github.io/sprig/"""

from __future__ import annotations

import base64
import binascii
import hashlib
import posixpath
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text import functions, patterns, values
from moorage_workflows.decide.workflows.text.functions import Call, Signature, text
from moorage_workflows.decide.workflows.text.values import is_list, shown

_WORD = re.compile(
    r"\d+[a-z][a-z\d]*|[A-Z]+(?![a-z])(?:\d+(?![a-z\d]))?|[A-Z]?[a-z]+(?:\d+(?![a-z\d]))?|\d+|[^\W_]+"
)


def plain(name: str, function: Callable[..., Any], least: int, most: int | None = -1) -> Signature:
    """Return the signature of a function with only string arguments. `most`: default is `least`."""

    def called(call: Call, arguments: Sequence[Any]) -> Any:
        call.budget.string(sum(len(text(argument, name)) for argument in arguments))
        return function(*arguments)

    return Signature(called, least, least if most == -1 else most)


def sprig_text(value: Any, call: Call) -> str:
    """Return a value as sprig prints it: a string unchanged, bytes as text, other values as Go's `%v`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return values.go_text(value, call.budget)


def texts(value: Any, call: Call) -> list[str]:
    """The elements of a list as strings, nil left out; any other value is a list of one element."""
    if not is_list(value):
        return [] if value is None else [sprig_text(value, call)]
    call.budget.items(len(value))
    return [sprig_text(element, call) for element in value if element is not None]


def quoted(value: str) -> str:
    """A string in double quotes, with Go's escapes."""
    parts: list[str] = []
    for character in value:
        code = ord(character)
        if character in _ESCAPES:
            parts.append(_ESCAPES[character])
        elif character.isprintable():
            parts.append(character)
        elif code < 0x80:
            parts.append(f"\\x{code:02x}")
        else:
            parts.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(parts) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"}
_ESCAPES |= {"\t": "\\t", "\v": "\\v"}


def _joined(write: Callable[[str], str]) -> Signature:
    def called(call: Call, arguments: Sequence[Any]) -> str:
        parts = [write(sprig_text(argument, call)) for argument in arguments if argument is not None]
        return functions.join(parts, " ", call.budget)

    return Signature(called, 0, None)


def _abbreviate(value: str, width: int) -> str:
    return value if len(value) <= width or width < 4 else value[: width - 3] + "..."


def _abbrev(_call: Call, arguments: Sequence[Any]) -> str:
    return _abbreviate(text(arguments[1], "sprig.abbrev"), values.whole(arguments[0]))


def _abbrev_both(_call: Call, arguments: Sequence[Any]) -> str:
    offset, width = values.whole(arguments[0]), values.whole(arguments[1])
    value = text(arguments[2], "sprig.abbrevboth")
    if width < 4 or (offset > 0 and width < 7) or len(value) <= width:
        return value
    offset = min(offset, len(value))
    if len(value) - offset < width - 3:
        offset = len(value) - (width - 3)
    if offset <= 4:
        return value[: width - 3] + "..."
    if offset + width - 3 < len(value):
        return "..." + _abbreviate(value[offset:], width - 3)
    return "..." + value[len(value) - (width - 3) :]


def _trunc(_call: Call, arguments: Sequence[Any]) -> str:
    count, value = values.whole(arguments[0]), text(arguments[1], "sprig.trunc")
    length = functions.byte_length(value)
    if count < 0 < length + count:
        return functions.byte_slice(value, length + count, length)
    return functions.byte_slice(value, 0, count) if 0 <= count < length else value


def _substr(_call: Call, arguments: Sequence[Any]) -> str:
    start, stop = values.whole(arguments[0]), values.whole(arguments[1])
    value = text(arguments[2], "sprig.substr")
    length = functions.byte_length(value)
    if start < 0:
        start = 0
    elif stop < 0 or stop > length:
        stop = length
    if not start <= stop <= length:
        raise TextError(f"sprig.substr: {start} to {stop} is outside a string of {length} bytes")
    return functions.byte_slice(value, start, stop)


def _repeat(call: Call, arguments: Sequence[Any]) -> str:
    return functions.repeat(text(arguments[1], "sprig.repeat"), values.whole(arguments[0]), call.budget)


def _replace(call: Call, arguments: Sequence[Any]) -> str:
    old, new, value = (text(argument, "sprig.replace") for argument in arguments)
    return functions.replace(value, old, new, -1, call.budget)


def _title(value: str) -> str:
    return re.sub(r"(?<![\w'])[^\W\d_]", lambda match: match[0].upper(), value)


def _snake(separator: str) -> Callable[[str], str]:
    return lambda value: separator.join(word.lower() for word in _WORD.findall(value))


def _pascal(value: str) -> str:
    def upper(match: re.Match[str]) -> str:
        return match[1].upper()

    head = re.match(r"[-_\s]*", value)
    tail = re.match(r"[-_\s]*", value[::-1])
    before = head[0] if head else ""
    after = tail[0][::-1] if tail and len(before) < len(value) else ""
    return before + re.sub(r"(?:^|[-_\s]+)([^-_\s])", upper, value[len(before) : len(value) - len(after)]) + after


def _swapped(value: str) -> str:
    return value.swapcase()


def _wrapped(value: str, width: int, line: str, *, cuts: bool) -> str:
    width = max(width, 1)
    parts: list[str] = []
    offset = 0
    while len(value) - offset > width:
        if value[offset] == " ":
            offset += 1
            continue
        space = value.rfind(" ", 0, width + offset + 1)
        if space >= offset:
            parts += [value[offset:space], line]
            offset = space + 1
        elif cuts:
            parts += [value[offset : offset + width], line]
            offset += width
        else:
            space = value.find(" ", width + offset)
            if space < 0:
                break
            parts += [value[offset:space], line]
            offset = space + 1
    return "".join((*parts, value[offset:]))


def _wrap(call: Call, arguments: Sequence[Any]) -> str:
    value = text(arguments[1], "sprig.wrap")
    call.budget.spend(len(value))
    return _wrapped(value, values.whole(arguments[0]), "\n", cuts=False)


def _wrap_with(call: Call, arguments: Sequence[Any]) -> str:
    line, value = text(arguments[1], "sprig.wrapWith"), text(arguments[2], "sprig.wrapWith")
    call.budget.string(len(value) * (1 + len(line)))
    return _wrapped(value, values.whole(arguments[0]), line or "\n", cuts=True)


def _indented(name: str, start: str) -> Signature:
    def called(call: Call, arguments: Sequence[Any]) -> str:
        count, value = values.whole(arguments[0]), text(arguments[1], name)
        if count < 0:
            raise TextError(f"{name}: the count is {count}; use 0 or more")
        call.budget.string(len(value) + count * (value.count("\n") + 1))
        pad = " " * count
        return start + pad + value.replace("\n", "\n" + pad)

    return Signature(called, 2, 2)


def _plural(_call: Call, arguments: Sequence[Any]) -> str:
    singular, many = text(arguments[0], "sprig.plural"), text(arguments[1], "sprig.plural")
    return singular if values.whole(arguments[2]) == 1 else many


def _cat(call: Call, arguments: Sequence[Any]) -> str:
    return functions.join(
        [values.go_text(part, call.budget) for part in arguments if part is not None], " ", call.budget
    )


def _to_string(call: Call, arguments: Sequence[Any]) -> str:
    return sprig_text(arguments[0], call)


def _join(call: Call, arguments: Sequence[Any]) -> str:
    return functions.join(texts(arguments[1], call), text(arguments[0], "sprig.join"), call.budget)


def _split(call: Call, arguments: Sequence[Any]) -> dict[str, str]:
    return _numbered(
        functions.split(text(arguments[1], "sprig.split"), text(arguments[0], "sprig.split"), -1, call.budget)
    )


def _splitn(call: Call, arguments: Sequence[Any]) -> dict[str, str]:
    separator, value = text(arguments[0], "sprig.splitn"), text(arguments[2], "sprig.splitn")
    return _numbered(functions.split(value, separator, values.whole(arguments[1]), call.budget))


def _numbered(parts: Sequence[str]) -> dict[str, str]:
    return {f"_{index}": part for index, part in enumerate(parts)}


def _split_list(call: Call, arguments: Sequence[Any]) -> list[str]:
    separator, value = text(arguments[0], "sprig.splitList"), text(arguments[1], "sprig.splitList")
    return functions.split(value, separator, -1, call.budget)


def _to_strings(call: Call, arguments: Sequence[Any]) -> list[str]:
    return texts(arguments[0], call)


def _sort_alpha(call: Call, arguments: Sequence[Any]) -> list[str]:
    parts = texts(arguments[0], call)
    return functions.sorted_list(parts, parts, descending=False, budget=call.budget)


def _base(value: str) -> str:
    return posixpath.basename(value.rstrip("/")) or ("/" if value else ".")


def clean_path(value: str) -> str:
    """Return a path without `.`, `..` and doubled slashes, as Go's path.Clean does."""
    return "/" + posixpath.normpath(value).lstrip("/") if value.startswith("/") else posixpath.normpath(value)


def _dir(value: str) -> str:
    return clean_path(value[: value.rfind("/") + 1])


def _ext(value: str) -> str:
    name = value[value.rfind("/") + 1 :]
    return name[name.rfind(".") :] if "." in name else ""


def _base64(encoded: str) -> str:
    return functions.from_base64(encoded, "sprig.b64dec")


def _base32(encoded: str) -> str:
    try:
        return base64.b32decode(encoded).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as exc:
        raise TextError(f"sprig.b32dec: {shown(encoded)} is not base32: {exc}") from exc


def _digest(name: str) -> Callable[[str], str]:
    return lambda value: hashlib.new(
        name, value.encode("utf-8", "surrogatepass"), usedforsecurity=False
    ).hexdigest()


def _regex_find_all(call: Call, arguments: Sequence[Any]) -> list[str]:
    pattern, value = text(arguments[0], "sprig.regexFindAll"), text(arguments[1], "sprig.regexFindAll")
    count = values.whole(arguments[2])
    results: list[str] = []
    for match in patterns.compile_pattern(pattern).finditer(value):
        if 0 <= count <= len(results):
            break
        call.budget.spend(1 + len(match.group()) // 64)
        results.append(match.group())
    return results


def _regex_find(pattern: str, value: str) -> str:
    match = patterns.compile_pattern(pattern).search(value)
    return str(match.group()) if match else ""


def _regex_replacing(name: str, *, is_literal: bool) -> Signature:
    def called(call: Call, arguments: Sequence[Any]) -> str:
        pattern, value, new = (text(argument, name) for argument in arguments)
        parts: list[str] = []
        position = size = 0
        for match in patterns.compile_pattern(pattern).finditer(value):
            part = new if is_literal else patterns.expand(new, match)
            size += len(part)
            call.budget.spend()
            call.budget.string(size)
            parts += [value[position : match.start()], part]
            position = match.end()
        return "".join((*parts, value[position:]))

    return Signature(called, 3, 3)


def _regex_split(call: Call, arguments: Sequence[Any]) -> list[str]:
    pattern, value = text(arguments[0], "sprig.regexSplit"), text(arguments[1], "sprig.regexSplit")
    count = values.whole(arguments[2])
    if count == 0:
        return []
    parts: list[str] = []
    position = 0
    for match in patterns.compile_pattern(pattern).finditer(value):
        if 0 < count <= len(parts) + 1:
            break
        if match.end() == 0 or (match.start() == match.end() == len(value)):
            continue  # an empty match at an end splits nothing
        call.budget.spend()
        parts.append(value[position : match.start()])
        position = match.end()
    parts.append(value[position:])
    return parts


def _quote_pattern(value: str) -> str:
    return re.sub(r"[\\.+*?()|\[\]{}^$]", lambda match: "\\" + match[0], value)


TEXTS: dict[str, Signature] = {
    "hello": Signature(lambda _call, _arguments: "Hello!", 0, 0),
    "abbrev": Signature(_abbrev, 2, 2),
    "abbrevboth": Signature(_abbrev_both, 3, 3),
    "trunc": Signature(_trunc, 2, 2),
    "substr": Signature(_substr, 3, 3),
    "trim": plain("sprig.trim", functions.trimmed, 1),
    "trimAll": plain("sprig.trimAll", lambda characters, value: value.strip(characters), 2),
    "trimall": plain("sprig.trimall", lambda characters, value: value.strip(characters), 2),
    "trimSuffix": plain("sprig.trimSuffix", lambda suffix, value: value.removesuffix(suffix), 2),
    "trimPrefix": plain("sprig.trimPrefix", lambda prefix, value: value.removeprefix(prefix), 2),
    "upper": plain("sprig.upper", str.upper, 1),
    "lower": plain("sprig.lower", str.lower, 1),
    "title": plain("sprig.title", _title, 1),
    "untitle": plain("sprig.untitle", lambda value: re.sub(r"(?<!\S)\S", lambda m: m[0].lower(), value), 1),
    "repeat": Signature(_repeat, 2, 2),
    "nospace": plain("sprig.nospace", lambda value: "".join(value.split()), 1),
    "initials": plain("sprig.initials", lambda value: "".join(word[0] for word in value.split()), 1),
    "swapcase": plain("sprig.swapcase", _swapped, 1),
    "snakecase": plain("sprig.snakecase", _snake("_"), 1),
    "kebabcase": plain("sprig.kebabcase", _snake("-"), 1),
    "camelcase": plain("sprig.camelcase", _pascal, 1),
    "wrap": Signature(_wrap, 2, 2),
    "wrapWith": Signature(_wrap_with, 3, 3),
    "contains": plain("sprig.contains", lambda part, value: part in value, 2),
    "hasPrefix": plain("sprig.hasPrefix", lambda prefix, value: value.startswith(prefix), 2),
    "hasSuffix": plain("sprig.hasSuffix", lambda suffix, value: value.endswith(suffix), 2),
    "quote": _joined(quoted),
    "squote": _joined(lambda value: f"'{value}'"),
    "cat": Signature(_cat, 0, None),
    "indent": _indented("sprig.indent", ""),
    "nindent": _indented("sprig.nindent", "\n"),
    "replace": Signature(_replace, 3, 3),
    "plural": Signature(_plural, 3, 3),
    "toString": Signature(_to_string, 1, 1),
    "toStrings": Signature(_to_strings, 1, 1),
    "join": Signature(_join, 2, 2),
    "sortAlpha": Signature(_sort_alpha, 1, 1),
    "split": Signature(_split, 2, 2),
    "splitn": Signature(_splitn, 3, 3),
    "splitList": Signature(_split_list, 2, 2),
    "sha1sum": plain("sprig.sha1sum", _digest("sha1"), 1),
    "sha256sum": plain("sprig.sha256sum", _digest("sha256"), 1),
    "sha512sum": plain("sprig.sha512sum", _digest("sha512"), 1),
    "adler32sum": plain("sprig.adler32sum", lambda value: str(zlib.adler32(value.encode())), 1),
    "b64enc": plain("sprig.b64enc", lambda value: values.base64_text(value.encode()), 1),
    "b64dec": plain("sprig.b64dec", _base64, 1),
    "b32enc": plain("sprig.b32enc", lambda value: base64.b32encode(value.encode()).decode(), 1),
    "b32dec": plain("sprig.b32dec", _base32, 1),
    "regexMatch": plain("sprig.regexMatch", patterns.matches, 2),
    "regexFindAll": Signature(_regex_find_all, 3, 3),
    "regexFind": plain("sprig.regexFind", _regex_find, 2),
    "regexReplaceAll": _regex_replacing("sprig.regexReplaceAll", is_literal=False),
    "regexReplaceAllLiteral": _regex_replacing("sprig.regexReplaceAllLiteral", is_literal=True),
    "regexSplit": Signature(_regex_split, 3, 3),
    "regexQuoteMeta": plain("sprig.regexQuoteMeta", _quote_pattern, 1),
    "base": plain("sprig.base", _base, 1),
    "dir": plain("sprig.dir", _dir, 1),
    "clean": plain("sprig.clean", clean_path, 1),
    "ext": plain("sprig.ext", _ext, 1),
    "isAbs": plain("sprig.isAbs", lambda value: value.startswith("/"), 1),
}
TEXTS |= {f"os{name[0].upper()}{name[1:]}": TEXTS[name] for name in ("base", "dir", "clean", "ext", "isAbs")}

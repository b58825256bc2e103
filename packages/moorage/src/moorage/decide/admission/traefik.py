"""The hosts of the requests that a Traefik rule matches.

Traefik parses rules with Go's expression parser, which accepts comments, escapes and blanks. A search for `Host(`
would miss such forms. So this parser reads a subset of the language completely, and refuses everything else:

    rule    = operand (("&&" | "||") operand)*      && binds tighter
    operand = call | "(" rule ")"
    call    = NAME "(" [text ("," text)*] ")"       no blank between NAME and "("
    text    = "`" characters "`"                    without quotes, control characters, "//" and "/*"

https://doc.traefik.io/traefik/reference/routing-configuration/http/routing/rules-and-priority/
https://github.com/traefik/traefik/blob/master/pkg/rules/parser.go
"""

from __future__ import annotations

import re
from itertools import chain

RULE_CHARACTERS_MAX = 16 * 1024  # some hundred hosts; nested parentheses cost the square of it
HOST_CALLS = frozenset({"host", "hostheader", "hostsni"})  # in any letter case; several texts are alternatives

_TEXT = r"`(?:(?!//|/\*)[^`\x00-\x1f\x7f\"'])*`"
_BLANK = r"[ \t\r\n]*"
_TOKEN = re.compile(
    rf"{_BLANK}(?:(?P<name>[A-Za-z]+)\({_BLANK}(?P<texts>(?:{_TEXT}(?:{_BLANK},{_BLANK}{_TEXT})*)?){_BLANK}\)"
    rf"|(?P<mark>&&|\|\||\(|\))){_BLANK}"
)
_QUOTED = re.compile(_TEXT)


def hosts_of_rule(rule: str) -> tuple[str, ...] | None:
    """The hosts of the requests that the rule can match. Empty: any host. None: the rule cannot be parsed."""
    if len(rule) > RULE_CHARACTERS_MAX:
        return None
    groups: list[list[list[str]]] = [[[]]]  # parentheses that are open → alternatives → hosts; none: any host
    place, wants_operand = 0, True
    while place < len(rule):
        token = _TOKEN.match(rule, place)
        if token is None:
            return None
        place = token.end()
        name, mark = (token["name"] or "").lower(), token["mark"]
        if wants_operand is not (bool(name) or mark == "("):
            return None
        if name:
            if name in HOST_CALLS:
                groups[-1][-1] += (text[1:-1] for text in _QUOTED.findall(token["texts"]))
            elif name.startswith("host"):  # HostRegexp, HostSNIRegexp
                return None
            wants_operand = False
        elif mark == "(":
            groups.append([[]])
        elif mark == ")":
            if len(groups) == 1:
                return None
            hosts = _either(groups.pop())
            groups[-1][-1] += hosts
        else:
            if mark == "||":
                groups[-1].append([])
            wants_operand = True
    return tuple(dict.fromkeys(_either(groups[0]))) if len(groups) == 1 and not wants_operand else None


def _either(alternatives: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(alternatives)) if all(alternatives) else []

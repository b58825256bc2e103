"""The hosts of Traefik's rules, against a reader of Go's expressions that shares nothing with ours."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorage.decide.admission.traefik import RULE_CHARACTERS_MAX, hosts_of_rule


class NotGo(Exception):
    """What Go's parser or Traefik's would refuse: such a rule routes nothing."""


def go_tokens(text: str) -> list[str]:
    """Tokens as go/scanner reads them: comments and blanks are left out, raw and quoted strings are known."""
    tokens, place = [], 0
    while place < len(text):
        if text[place] in " \t\r\n":
            place += 1
        elif text.startswith("/*", place):
            end = text.find("*/", place + 2)
            if end < 0:
                raise NotGo
            place = end + 2
        elif text.startswith("//", place):
            place = (text.find("\n", place) + 1) or len(text)
        elif match := re.compile(r"[^\W\d]\w*|&&|\|\||[(),!]").match(text, place):
            tokens.append(match[0])
            place = match.end()
        elif match := re.compile(r"`([^`]*)`").match(text, place):
            tokens.append("'" + match[1].replace("\r", ""))  # a text; Go drops carriage returns
            place = match.end()
        elif match := re.compile(r'"((?:[^"\\\n]|\\x[0-9a-f]{2}|\\[\\"])*)"').match(text, place):
            tokens.append("'" + re.sub(r"\\x(..)|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], match[1]))
            place = match.end()
        else:
            raise NotGo
    return tokens


class Matcher:
    """Whether a rule matches a request for a host, where everything else about the request may be as it likes."""

    def __init__(self, text: str, host: str) -> None:
        self.tokens, self.host = [*go_tokens(text), ""], host
        matches = self.either()
        if self.tokens != [""]:
            raise NotGo
        self.can_match = matches[0]

    def take(self, wanted: str = "") -> str:
        token = self.tokens.pop(0) if self.tokens else ""
        if not token or (wanted and token != wanted):
            raise NotGo
        return token

    def either(self) -> tuple[bool, bool]:
        """(can match, can fail)."""
        left = self.both()
        while self.tokens[0] == "||":
            self.take()
            right = self.both()
            left = (left[0] or right[0], left[1] and right[1])
        return left

    def both(self) -> tuple[bool, bool]:
        left = self.operand()
        while self.tokens[0] == "&&":
            self.take()
            right = self.operand()
            left = (left[0] and right[0], left[1] or right[1])
        return left

    def operand(self) -> tuple[bool, bool]:
        token = self.take()
        if token == "!":
            can_match, can_fail = self.operand()
            return can_fail, can_match
        if token == "(":
            matches = self.either()
            self.take(")")
            return matches
        if not token.isidentifier():
            raise NotGo
        self.take("(")
        texts = []
        while self.tokens[0] != ")":
            if texts:
                self.take(",")
            text = self.take()
            if not text.startswith("'"):
                raise NotGo
            texts.append(text[1:])
        self.take(")")
        return self.call(token.lower(), texts)

    def call(self, name: str, texts: list[str]) -> tuple[bool, bool]:
        if name in ("host", "hostheader", "hostsni"):
            matches = any(text.lower().rstrip(".") in (self.host, "*") for text in texts)
            return matches, not matches
        if name in ("hostregexp", "hostsniregexp"):
            matches = any(re.search(re.escape(text).replace(r"\.\*", ".*"), self.host) for text in texts)
            return matches, not matches
        return True, True


VICTIM, MINE = "victim.org", "mine.org"
PIECES = st.sampled_from(
    ["Host", "HostHeader", "HOST", "HostSNI", "HostRegexp", "Path", "(", ")", ",", "`", '"', "&&", "||", "!", "/*",
     "*/", "//", "\n", " ", VICTIM, MINE, ".*", "\\x76ictim.org", "\r", "`victim.org`", "`mine.org`",
     '"victim.org"',
     "Host(`mine.org`)", "Host(`victim.org`)", "Path(`/x`)"]
)  # fmt: skip
CALLS = st.sampled_from(
    [
        "Host(`mine.org`)",
        "Host(`victim.org`)",
        "Path(`/x`)",
        "Host(`mine.org`, `victim.org`)",
        "HostSNI(`mine.org`)",
    ]
)
RULES = st.recursive(
    CALLS,
    lambda inner: st.tuples(inner, st.sampled_from([" && ", "||"]), inner).map("".join) | inner.map("({})".format),
    max_leaves=6,
)


@given(st.lists(PIECES, max_size=12).map("".join) | RULES)
@example("Host(/*(*/`victim.org`) /* Host(`mine.org`) */")
@example("HostHeader(`victim.org`) /* Host(`mine.org`) */")
@example('Host (`victim.org`) && PathPrefix(`/`, `/Host("mine.org")`)')
@example("Host(`mine.org`) || Path(`/x`)")
@example("Host(`vic\rtim.org`)")
@example('Host("\\x76ictim.org")')
@example("Host(`mine.org`) && (Path(`/x`) || Host(`victim.org`))")
def test_a_rule_that_is_read_matches_no_host_but_those_that_are_judged(rule: str) -> None:
    hosts = hosts_of_rule(rule)
    if hosts is None or not hosts or VICTIM in hosts or "*" in hosts:
        return
    try:
        assert not Matcher(rule, VICTIM).can_match
    except NotGo:
        return


@given(RULES)
def test_rules_of_calls_joined_by_and_and_or_are_read(rule: str) -> None:
    hosts = hosts_of_rule(rule)
    assert hosts is not None
    assert set(hosts) <= {MINE, VICTIM}


@pytest.mark.parametrize(
    ("rule", "hosts"),
    [
        ("Host(`a.org`)", ("a.org",)),
        ("Host(`a.org`) && PathPrefix(`/x`)", ("a.org",)),
        ("Host(`a.org`)&&(PathPrefix(`/x`)||PathPrefix(`/y`))", ("a.org",)),
        ("Host(`a.org`, `b.org`) || HOSTSNI( `c.org` )", ("a.org", "b.org", "c.org")),
        ("Host(`a.org`) || Path(`/x`)", ()),
        ("Path(`/x`) && Path(`/y`) || Host(`a.org`) && Path(`/z`)", ()),
        ("PathRegexp(`^/(a|b)\\d$`) && Host(`a.org`)", ("a.org",)),
        ("\n  Host(`a.org`) &&\n  Path(`/x`)\n", ("a.org",)),
        ("", None),
        ("()", None),
        ("Host(`a.org`", None),
        ("Host(`a.org`))", None),
        ("(Host(`a.org`)", None),
        ("Host(`a.org`) Host(`b.org`)", None),
        ("&& Host(`a.org`)", None),
        ("Host(`a.org`) &&", None),
        ("!Host(`a.org`)", None),
        ("Host(`a.org`) && HostRegexp(`.*`)", None),
        ("Host(`a.org`) & Path(`/x`)", None),
        ("Host(`a.org`); Path(`/x`)", None),
        ("Host(a.org)", None),
        ("Path(`/*`) && Host(`a.org`)", None),
        ("(" * 100 + "Host(`a.org`)" + ")" * 100, ("a.org",)),
        ("Host(`" + "a" * RULE_CHARACTERS_MAX + "`)", None),
    ],
)
def test_what_a_rule_asks_for(rule: str, hosts: tuple[str, ...] | None) -> None:
    assert hosts_of_rule(rule) == hosts

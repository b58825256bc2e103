"""Label and field selectors.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.errors import NumberError, SelectorError
from moorage_kube.integers import INT64_MAX, parse_integer

Labels = Mapping[str, str]

_KEY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
# of a requirement without blanks around it; two parts that match blanks are never adjacent, so that no text
# takes more steps than a few times its length
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_COMPARE = re.compile(rf"({_KEY})\s*(<|>)\s*(-?[0-9]+)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_PATH = re.compile(r"[A-Za-z0-9_.\[\]/-]+")
REQUIREMENTS_MAX = 250  # of one text: each is tried on each object of a list
_SET_MIN = 8  # values from which on looking one up in a set is worth the set
_LABEL_VALUE = re.compile(_VALUE)
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on one label. `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    _known: Collection[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = frozenset(self.values) if len(self.values) >= _SET_MIN else self.values
        object.__setattr__(self, "_known", known)

    def matches(self, labels: Labels) -> bool:
        present = self.key in labels
        value = labels.get(self.key, "")
        match self.operator:
            case "In":
                return present and value in self._known
            case "NotIn":
                return not present or value not in self._known
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                if not present or not self.values:
                    return False
                try:
                    left = parse_integer(value, minimum=-INT64_MAX - 1)
                    right = parse_integer(self.values[0], minimum=-INT64_MAX - 1)
                except NumberError:
                    return False
                return left > right if self.operator == "Gt" else left < right
        raise SelectorError(
            f"operator {self.operator!r} is not valid",
            hint="use In, NotIn, Exists, DoesNotExist, Gt or Lt",
        )

    def __str__(self) -> str:
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "NotIn" if len(self.values) == 1:
                return f"{self.key}!={self.values[0]}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key} {'>' if self.operator == 'Gt' else '<'} {self.values[0]}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector: all requirements must be met. Without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels | None) -> bool:
        labels = labels or {}
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Read a `labelSelector` query: "app=web,tier in (a, b),!old". Empty text matches all.

    Raises SelectorError with the part that could not be read.
    """
    parts = _split_outside_parentheses(text)
    _check_count(parts)
    requirements: list[Requirement] = []
    for part in parts:
        part = part.strip()
        if matched := _SET.fullmatch(part):
            values = tuple(sorted({value.strip() for value in matched[3].split(",")}))
            _check_values(values, part)
            requirements.append(Requirement(matched[1], "In" if matched[2] == "in" else "NotIn", values))
        elif matched := _EQUAL.fullmatch(part):
            _check_values((matched[3],), part)
            requirements.append(Requirement(matched[1], "NotIn" if matched[2] == "!=" else "In", (matched[3],)))
        elif matched := _COMPARE.fullmatch(part):
            requirements.append(Requirement(matched[1], "Gt" if matched[2] == ">" else "Lt", (matched[3],)))
        elif matched := _EXISTS.fullmatch(part):
            requirements.append(Requirement(matched[2], "DoesNotExist" if matched[1] else "Exists"))
        else:
            raise SelectorError(
                f"{_short(part)} is not a label requirement",
                hint="write key=value, key!=value, key in (a,b), key or !key, separated by commas",
            )
    return LabelSelector(tuple(requirements))


def label_selector_of(spec: Mapping[str, Any] | None) -> LabelSelector:
    """Read a `metav1.LabelSelector` object (matchLabels, matchExpressions).

    In Kubernetes' own APIs None matches nothing. Here None returns a selector without requirements: the caller
    decides.
    """
    spec = spec or {}
    requirements = [
        Requirement(key, "In", (str(value),)) for key, value in (spec.get("matchLabels") or {}).items()
    ]
    for match_expression in spec.get("matchExpressions") or ():
        requirements.append(requirement_of(match_expression))
    return LabelSelector(tuple(requirements))


def requirement_of(spec: Mapping[str, Any]) -> Requirement:
    """Read a `{key, operator, values}` object of a label selector or of a node selector term."""
    return Requirement(str(spec["key"]), str(spec["operator"]), tuple(str(v) for v in spec.get("values") or ()))


def parse_field_selector(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test of whole objects for a selector: "status.phase=Running,metadata.name!=x".

    Dots separate the parts of a path; a missing field reads as the empty string, as in the API server. The server
    decides which paths a resource allows. Raises SelectorError.
    """
    tests: list[tuple[tuple[str, ...], bool, str]] = []
    parts = [part for part in text.split(",") if part.strip()]
    _check_count(parts)
    for part in parts:
        path, sign, value = _field_requirement(part)
        if not sign or not _PATH.fullmatch(path):
            raise SelectorError(
                f"{_short(part.strip())} is not a field requirement", hint="write field=value or field!=value"
            )
        tests.append((tuple(path.split(".")), sign != "!=", value))

    def matches(obj: Mapping[str, Any]) -> bool:
        return all((_field(obj, path) == value) is equal for path, equal, value in tests)

    return matches


def field_selector_paths(text: str) -> tuple[str, ...]:
    """Return the dotted paths in a field selector, in their order."""
    return tuple(_field_requirement(part)[0] for part in text.split(",") if part.strip())


def _field_requirement(part: str) -> tuple[str, str, str]:
    """Return the path, the operator and the value of one term; the operator is "" if the term has none."""
    path, sign, value = part.partition("=")
    if path.endswith("!"):
        path, sign = path[:-1], "!="
    elif value.startswith("="):
        value = value[1:]
    return path.strip(), sign, value.strip()


def is_label_value(text: str) -> bool:
    """Whether the text is "", or at most 63 letters, digits, "-", "_" and ".", with an alphanumeric at both
    ends.
    """
    return len(text) <= 63 and _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether the text is a label key: a label value that is not empty, after an optional prefix.

    The prefix is a DNS name of at most 253 characters and "/".
    """
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > 253 or _DOMAIN.fullmatch(domain) is None):
        return False
    return len(name) <= 63 and _LABEL_NAME.fullmatch(name) is not None


def _check_count(parts: Sequence[str]) -> None:
    if len(parts) > REQUIREMENTS_MAX:
        raise SelectorError(
            f"the selector has {len(parts)} requirements; at most {REQUIREMENTS_MAX} are allowed",
            hint="name many values of one key as key in (a,b)",
        )


def _short(part: str) -> str:
    return repr(part if len(part) <= 100 else part[:100] + "…")


def _check_values(values: Iterable[str], part: str) -> None:
    for value in values:
        if not is_label_value(value):
            raise SelectorError(
                f"{_short(value)} in {_short(part)} is not a label value",
                hint="at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends",
            )


def _field(obj: Any, path: tuple[str, ...]) -> str:
    for key in path:
        if not isinstance(obj, Mapping):
            return ""
        obj = obj.get(key)
    if obj is None:
        return ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


def _split_outside_parentheses(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    if len(parts) == 1 and not parts[0].strip():
        return []
    return parts

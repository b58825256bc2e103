"""The `flags` of a resource template: words of `kubectl`, read for the one action of the template.

A flag that would change the request or its target is refused, unless it is carried out here.
https://kubernetes.io/docs/reference/kubectl/generated/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from moorage.decide.evaluation import TextError

ACTIONS = ("get", "create", "apply", "delete", "replace", "patch")
_ALL = frozenset(ACTIONS)
_WRITES = frozenset(("create", "apply", "replace", "patch"))
_FINDS = frozenset(("get", "delete"))
_ENDS = frozenset(("delete", "replace", "apply"))


class _Flag(Struct, frozen=True):
    """A kubectl flag. `alone`: its value when none is written; None: the next word is the value."""

    actions: frozenset[str]
    alone: str | None = None
    choices: tuple[str, ...] = ()


_TRUTH = ("true", "false")
_FLAGS: Mapping[str, _Flag] = {
    "namespace": _Flag(_ALL),
    "field-manager": _Flag(_WRITES),
    "validate": _Flag(frozenset(("create", "apply", "replace")), "strict", ("strict", "warn", "ignore", *_TRUTH)),
    "dry-run": _Flag(_WRITES | {"delete"}, "client", ("none", "server", "client")),
    "ignore-not-found": _Flag(_FINDS, "true", _TRUTH),
    "selector": _Flag(_FINDS),
    "field-selector": _Flag(_FINDS),
    "all": _Flag(frozenset(("delete",)), "true", _TRUTH),
    "cascade": _Flag(_ENDS, "background", ("background", "foreground", "orphan", *_TRUTH)),
    "force": _Flag(_ENDS, "true", _TRUTH),
    "grace-period": _Flag(_ENDS),
    "now": _Flag(frozenset(("delete",)), "true", _TRUTH),
    "wait": _Flag(_ENDS, "true", _TRUTH),
    "timeout": _Flag(_ENDS),
    "type": _Flag(frozenset(("patch",)), None, ("strategic", "merge", "json")),
    "subresource": _Flag(frozenset(("get", "patch", "replace"))),
    # they are the default here
    "server-side": _Flag(frozenset(("apply",)), "true", ("true",)),
    "force-conflicts": _Flag(frozenset(("apply",)), "true", _TRUTH),
    "overwrite": _Flag(frozenset(("apply",)), "true", ("true",)),
    "save-config": _Flag(_WRITES, "true", _TRUTH),
}
_SHORT = {"n": "namespace", "l": "selector"}
_SECONDS = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


class Flags(Struct, frozen=True, kw_only=True):
    """`words`: the arguments that are not flags: a kind and names, or KIND/NAME. `values`: flags by their
    names.
    """

    words: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str, usual: str = "") -> str:
        return self.values.get(name, usual)

    def is_set(self, name: str, *, usual: bool = False) -> bool:
        return self.values.get(name, "true" if usual else "false") == "true"

    @property
    def seconds(self) -> float | None:
        """How many seconds `delete` waits; None: without a limit."""
        return seconds_of(self.values["timeout"]) or None if "timeout" in self.values else None

    @property
    def targets(self) -> tuple[tuple[str, str], ...]:
        """(kind, name) of each object that the words name; the name is empty for a kind without a name."""
        slashed = [word for word in self.words if "/" in word]
        if slashed and len(slashed) < len(self.words):
            raise TextError(f"flags: {' '.join(self.words)}: write KIND/NAME for each object, or KIND NAME...")
        if slashed:
            pairs = [word.split("/") for word in slashed]
            bad = next(
                (word for word, pair in zip(slashed, pairs, strict=True) if len(pair) != 2 or not all(pair)), ""
            )
            if bad:
                raise TextError(f"flags: {bad!r} must be KIND/NAME")
            return tuple((pair[0], pair[1]) for pair in pairs)
        if not self.words:
            return ()
        kind, *names = self.words
        if "," in kind:
            raise TextError(f"flags: {kind!r} names several kinds: use one step for each")
        return tuple((kind, name) for name in names) or ((kind, ""),)


def read_flags(action: str, given: Sequence[str]) -> Flags:
    """Read the flags of one action. Raises TextError, which names the word and the allowed ones."""
    words: list[str] = []
    values: dict[str, str] = {}
    rest = [str(word) for word in given]
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, value = _split(word)
        flag = _FLAGS.get(name)
        if flag is None or action not in flag.actions:
            allowed = ", ".join(f"--{each}" for each, row in _FLAGS.items() if action in row.actions)
            raise TextError(f"flag {word!r} cannot be used with {action}: use {allowed}")
        if value is None and flag.alone is None:
            if not rest:
                raise TextError(f"flag {word!r} needs a value")
            value = rest.pop(0)
        value = flag.alone if value is None else value
        assert value is not None
        if flag.choices and value not in flag.choices:
            raise TextError(f"flag --{name} is {value!r}: use one of {', '.join(flag.choices)}")
        values[name] = value
    flags = Flags(words=tuple(words), values=values)
    _check(action, flags)
    return flags


def _split(word: str) -> tuple[str, str | None]:
    """Return the name of a flag and the value after its "="; None without "="."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals else None
    name = _SHORT.get(word[1], word[1:])
    return name, word[2:].removeprefix("=") or None if word[1] in _SHORT else None


def _check(action: str, flags: Flags) -> None:
    if action in ("create", "apply", "replace") and flags.words:
        raise TextError(
            f"flags: {' '.join(flags.words)!r}: {action} takes flags that begin with --, and the object from the"
            " manifest"
        )
    if action == "apply" and (flags.is_set("force") or "cascade" in flags.values):
        raise TextError("flags: apply never deletes an object: leave out --force and --cascade")
    if (period := flags.text("grace-period")) and not re.fullmatch(r"-?\d{1,9}", period, re.ASCII):
        raise TextError(f"flag --grace-period is {period!r}: use seconds, such as 30")
    if timeout := flags.text("timeout"):
        seconds_of(timeout)
    flags.targets  # noqa: B018  raises for words that name nothing


def seconds_of(text: str) -> float:
    """Raises TextError for a text that is neither seconds nor a duration such as 5m."""
    matched = _SECONDS.fullmatch(text)
    if not text or matched is None:
        raise TextError(f"flag --timeout is {text!r}: use a duration, such as 30s or 5m")
    hours, minutes, seconds = (int(part or 0) for part in matched.groups())
    return float(hours * 3600 + minutes * 60 + seconds)

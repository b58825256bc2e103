"""Complete commands in messages with the options that choose cluster and namespace, so that users can copy
them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from moorage.cli.commands import COMMANDS

GROUPS = frozenset(
    {"map", "reserve", "workspace", "volume", "dataset", "doctor", "user", "tenant", "workflow", "cron", "cost"}
    | {"idle", "budget", "secret"}
)
INNER = {"workflow": frozenset({"template", "artifacts", "node"})}  # groups within groups
WITHOUT_TARGET = frozenset(
    {"notify", "login", "logout", "whoami", "token", "kubeconfig", "up", "down", "status", "manifests"}
    | {"operator", "webhook", "extender", "server", "completion", "demo"}
)
WITHOUT_NAMESPACE = frozenset(
    {"doctor", "user", "tenant", "drain", "cordon", "uncordon", "machines", "gpus", "audit"}
)
_NAMES = "|".join(sorted(name for _, name, _, _ in COMMANDS if name not in WITHOUT_TARGET))
_COMMAND = re.compile(rf"\bmoor (?P<name>{_NAMES})\b(?P<rest>[^`;\n]*)")

_typed: dict[str, str] = {}


def remember(options: Mapping[str, object]) -> None:
    """Remember the options of this command line that choose cluster, namespace and user.

    Skip those that are None.
    """
    _typed.clear()
    _typed.update({option: str(value) for option, value in options.items() if value is not None})


def as_typed(text: str) -> str:
    """Add the typed options to the commands of a message; commands that have them already remain unchanged."""
    return with_options(text, _typed) if _typed and "moor " in text else text


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Insert the options after each command in a text; in a group, after the name of the subcommand."""

    def complete(match: re.Match[str]) -> str:
        name, rest = match["name"], match["rest"]
        first, _, behind = rest.lstrip(" ").partition(" ") if name in GROUPS else ("", "", rest.lstrip(" "))
        if first in INNER.get(name, ()):
            second, _, behind = behind.partition(" ")
            first = f"{first} {second}"
        needed = [(option, value) for option, value in options.items() if _is_needed(name, option, rest)]
        words = [word for pair in needed for word in pair]
        blank = " " if behind else ""
        command = " ".join(["moor", name, *([first] if first else []), *(shlex.quote(word) for word in words)])
        return f"{command}{blank}{behind}"

    return _COMMAND.sub(complete, text)


def _is_needed(name: str, option: str, rest: str) -> bool:
    if option == "-n" and name in WITHOUT_NAMESPACE:
        return False
    known = rest.partition(" -- ")[0].split()
    return option not in known and not (option == "-n" and {"--namespace", "-A"} & set(known))

"""An entry of the audit log as a sentence: the user, the action, the client, and the address."""

from __future__ import annotations

import re

from moorage.api.people import AuditEntry

NOBODY = "somebody unknown"
PAST = {  # how an action begins → the same in the past
    "attach": "attached",
    "backfill": "backfilled",
    "cancel": "cancelled",
    "change": "changed",
    "check": "checked",
    "close": "closed",
    "continue": "continued",
    "cordon": "cordoned",
    "create": "created",
    "delete": "deleted",
    "drain": "drained",
    "end": "ended",
    "erase": "erased",
    "forward": "forwarded",
    "grant": "granted",
    "open": "opened",
    "pause": "paused",
    "replace": "replaced",
    "request": "requested",
    "resize": "resized",
    "restart": "restarted",
    "restore": "restored",
    "resubmit": "resubmitted",
    "resume": "resumed",
    "retry": "retried",
    "run": "ran",
    "share": "shared",
    "snooze": "snoozed",
    "start": "started",
    "stop": "stopped",
    "submit": "submitted",
    "suspend": "suspended",
    "take": "took",
    "uncordon": "uncordoned",
    "upload": "uploaded",
}
# requests without an action: method and path → the action, and its result
KNOWN: tuple[tuple[str, re.Pattern[str], str, str], ...] = tuple(
    (method, re.compile(path), action, done)
    for method, path, action, done in (
        ("POST", "/login", "log in", "logged in"),
        ("POST", "/login/exchange", "log in", "logged in"),
        ("POST", "/login/proof", "log in by a client certificate", "logged in by a client certificate"),
        ("DELETE", "/login", "log out", "logged out"),
        ("POST", "/logout", "log out", "logged out"),
        ("POST", "/login/password", "change the password", "changed the password"),
        ("PATCH", r"/maps/([^/]+/[^/]+)", r"change map \1", r"changed map \1"),
        ("POST", r"/maps/([^/]+/[^/]+)/items", r"add items to map \1", r"added items to map \1"),
        ("POST", r"/containers/create", "create a container", "created a container"),
        ("POST", r"/containers/([^/]+)/start", r"start container \1", r"started container \1"),
        ("POST", r"/containers/([^/]+)/stop", r"stop container \1", r"stopped container \1"),
        ("POST", r"/containers/([^/]+)/kill", r"kill container \1", r"killed container \1"),
        ("POST", r"/containers/([^/]+)/exec", r"run a command in container \1", r"ran a command in container \1"),
        ("DELETE", r"/containers/([^/]+)", r"delete container \1", r"deleted container \1"),
    )
)
_DOCKER = re.compile(r"(/v1\.\d+)?/(auth|build|containers|exec|images|volumes/create|networks|events)(/|$)")
_PREFIX = re.compile(r"^/(v1\.\d+|api/v1)(?=/)")


def sentence(entry: AuditEntry) -> str:
    """Such as `ada cancelled run default/a1, by REST from 10.0.0.7`.

    For a failed request it says so, and gives the reason.

    For a request to the Kubernetes API it names the program: `ada deleted run default/a1, by kubectl`.
    """
    if not entry.status:  # no single request: the text is a sentence already
        return entry.what
    where = f" from {entry.address}" if entry.address else ""
    return f"{deed(entry)}, {way(entry)}{where}"


def deed(entry: AuditEntry) -> str:
    """The user and the action, without the client: `ada cancelled run default/a1`."""
    if not entry.status:
        return entry.what
    person = entry.person or NOBODY
    action, done = _action(entry)
    if entry.status < 400:
        return f"{person} {done}"
    if entry.status == 403:
        return f"{person} may not {action}: refused (403)"
    if _is_kubernetes(entry):
        return f"{person} tried to {action}: refused by a guardrail ({entry.status})"
    return f"{person} tried to {action}: failed ({entry.status})"


def way(entry: AuditEntry) -> str:
    """The client of a request: REST (programs and the command line), Docker's API, or a page.

    For requests to the Kubernetes API it is the program, if known; it is unknown for deletions.
    """
    if _is_kubernetes(entry):
        return f"by {entry.client}" if entry.client else "through the Kubernetes API"
    if entry.path.startswith("/api/"):
        return "by REST"
    return "by Docker" if _DOCKER.match(entry.path) else "on a page"


def _is_kubernetes(entry: AuditEntry) -> bool:
    """Whether the entry is from Kubernetes: its verbs are in lower case, HTTP methods are not."""
    return entry.method.islower()


def _action(entry: AuditEntry) -> tuple[str, str]:
    verb, blank, rest = entry.what.partition(" ")
    if verb in PAST:
        return entry.what.strip(), f"{PAST[verb]}{blank}{rest}".strip()
    if entry.what:
        return f"do this: {entry.what}", f"did this: {entry.what}"
    path = _PREFIX.sub("", entry.path)
    for method, pattern, action, done in KNOWN:
        if method == entry.method and (match := pattern.fullmatch(path)):
            return match.expand(action), match.expand(done)
    request = f"{entry.method} {entry.path}"
    return f"send {request}", f"sent {request}"

"""The functions of sprig, as `sprig.trim(x)` in an expression.

A table of all, the refused ones, and date functions.

https://masterminds.github.io/sprig/. Dates are in UTC; sprig uses the zone of its machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any
from urllib.parse import unquote, urlsplit

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text import moments, values
from moorage_workflows.decide.workflows.text.durations import format_go_duration, go_nanoseconds
from moorage_workflows.decide.workflows.text.functions import Call, Signature, moment_now, text
from moorage_workflows.decide.workflows.text.methods import unix_nanoseconds
from moorage_workflows.decide.workflows.text.semver import compare
from moorage_workflows.decide.workflows.text.sprigdata import DATA, MUST_FROM_JSON
from moorage_workflows.decide.workflows.text.sprigtexts import TEXTS, plain
from moorage_workflows.decide.workflows.text.values import Duration, add, is_integer, is_map, shown

_GO = "2006-01-02 15:04:05 -0700 MST"  # how Go writes a moment, and Argo `workflow.creationTimestamp`
_RANDOM = "its result differs each time, and a repeated decision must have the same result"
_SECRETS = "keys and certificates do not belong in a manifest; make them in a step, or use a Secret"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "randAlphaNum",
            "randAlpha",
            "randAscii",
            "randNumeric",
            "randBytes",
            "randInt",
            "shuffle",
            "uuidv4",
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        (
            "bcrypt",
            "htpasswd",
            "genPrivateKey",
            "derivePassword",
            "buildCustomCert",
            "genCA",
            "genCAWithKey",
            "genSelfSignedCert",
            "genSelfSignedCertWithKey",
            "genSignedCert",
            "genSignedCertWithKey",
            "encryptAES",
            "decryptAES",
        ),
        _SECRETS,
    ),
    **dict.fromkeys(("env", "expandenv"), "the environment of the operator is not open to manifests"),
    "getHostByName": "the network is not open to expressions",
    "semver": "an expression has no values of that type; use semverCompare",
}


def _moment(value: Any, call: Call, name: str) -> datetime:
    """Return a time from a date, a time string, or seconds since 1970. As in sprig, any other value means now.

    In sprig a string means now, too. A decision must have the same result when it is repeated, so the string of
    `workflow.scheduledTime` is that time here. The same holds for `workflow.creationTimestamp`, which in an
    expression is the map of its formats.
    """
    if isinstance(value, datetime):
        return value
    if is_map(value):
        value = value.get("RFC3339", value)
    if isinstance(value, str):
        for layout in (_GO, moments.RFC3339):
            with contextlib.suppress(TextError):
                return moments.parse_moment(value, layout)
    if is_integer(value):
        try:
            return datetime.fromtimestamp(value, UTC)
        except (OverflowError, ValueError, OSError) as exc:
            raise TextError(f"{name}: {value} seconds are outside the years 1 to 9999") from exc
    return moment_now(call, name)


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "Local" else moments.zone(name)
    except TextError:
        return UTC


def _date(call: Call, arguments: Sequence[Any]) -> str:
    layout = text(arguments[0], "sprig.date")
    return moments.format_moment(_moment(arguments[1], call, "sprig.date").astimezone(UTC), layout)


def _date_in_zone(call: Call, arguments: Sequence[Any]) -> str:
    layout, zone = text(arguments[0], "sprig.dateInZone"), _zone(text(arguments[2], "sprig.dateInZone"))
    return moments.format_moment(_moment(arguments[1], call, "sprig.dateInZone").astimezone(zone), layout)


def _html_date(call: Call, arguments: Sequence[Any]) -> str:
    return _date(call, ("2006-01-02", arguments[0]))


def _html_date_in_zone(call: Call, arguments: Sequence[Any]) -> str:
    return _date_in_zone(call, ("2006-01-02", *arguments))


def _date_modify(call: Call, arguments: Sequence[Any]) -> Any:
    try:
        return _must_date_modify(call, arguments)
    except TextError:
        if isinstance(arguments[1], datetime):
            return arguments[1]
        raise


def _must_date_modify(call: Call, arguments: Sequence[Any]) -> Any:
    if not isinstance(arguments[1], datetime):
        raise TextError(f"sprig.dateModify: {shown(arguments[1])} is not a date")
    return add(arguments[1], Duration(go_nanoseconds(text(arguments[0], "sprig.dateModify"))), call.budget)


def _must_to_date(_call: Call, arguments: Sequence[Any]) -> datetime:
    return moments.parse_moment(text(arguments[1], "sprig.toDate"), text(arguments[0], "sprig.toDate"))


def _to_date(call: Call, arguments: Sequence[Any]) -> datetime:
    try:
        return _must_to_date(call, arguments)
    except TextError:
        return datetime(1, 1, 1, tzinfo=UTC)


def _unix_epoch(_call: Call, arguments: Sequence[Any]) -> str:
    if not isinstance(arguments[0], datetime):
        raise TextError(f"sprig.unixEpoch: {shown(arguments[0])} is not a date")
    return str(unix_nanoseconds(arguments[0]) // 10**9)


def _ago(call: Call, arguments: Sequence[Any]) -> str:
    seconds = round((moment_now(call, "sprig.ago") - _moment(arguments[0], call, "sprig.ago")).total_seconds())
    return format_go_duration(seconds * 10**9)


def _duration(_call: Call, arguments: Sequence[Any]) -> str:
    value = arguments[0]
    if isinstance(value, str):
        try:
            value = values.to_integer(value)
        except TextError:
            value = 0
    return format_go_duration(values.wrapped(value * 10**9) if is_integer(value) else 0)


_SIZES = (("y", 365 * 24 * 3600), ("mo", 30 * 24 * 3600), ("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1))


def _duration_round(call: Call, arguments: Sequence[Any]) -> str:
    value = arguments[0]
    span = 0
    if isinstance(value, str):
        try:
            span = go_nanoseconds(value)
        except TextError:
            span = 0
    elif is_integer(value):
        span = value
    elif isinstance(value, Duration):
        span = value.nanoseconds
    elif isinstance(value, datetime):
        span = unix_nanoseconds(moment_now(call, "sprig.durationRound")) - unix_nanoseconds(value)
    for unit, seconds in _SIZES:
        if abs(span) > seconds * 10**9:
            return f"{abs(span) // (seconds * 10**9)}{unit}"
    return "0s"


def _fail(_call: Call, arguments: Sequence[Any]) -> Any:
    raise TextError(text(arguments[0], "sprig.fail"))


def _url_parse(address: str) -> dict[str, Any]:
    try:
        parts = urlsplit(address)
        hostname = parts.hostname or ""
    except ValueError as exc:
        raise TextError(f"sprig.urlParse: {shown(address)} is not an address: {exc}") from exc
    user, at, host = parts.netloc.rpartition("@")
    is_opaque = bool(parts.scheme) and not parts.netloc and not parts.path.startswith("/")
    return {
        "scheme": parts.scheme,
        "host": host,
        "hostname": hostname,
        "path": "" if is_opaque else unquote(parts.path),
        "query": parts.query,
        "opaque": parts.path if is_opaque else "",
        "fragment": unquote(parts.fragment),
        "userinfo": user if at else "",
    }


def _url_join(_call: Call, arguments: Sequence[Any]) -> str:
    if not is_map(arguments[0]):
        raise TextError(f"sprig.urlJoin: {shown(arguments[0])} is not a map")
    parts: Mapping[Any, Any] = arguments[0]

    def part(name: str) -> str:
        return text(parts.get(name, ""), "sprig.urlJoin")

    scheme = f"{part('scheme')}:" if part("scheme") else ""
    user = f"{part('userinfo')}@" if part("userinfo") else ""
    host = f"//{user}{part('host')}" if part("host") or user else ""
    path = part("opaque") or part("path")
    if host and path and not path.startswith("/"):
        path = "/" + path
    query = f"?{part('query')}" if part("query") else ""
    fragment = f"#{part('fragment')}" if part("fragment") else ""
    return f"{scheme}{host}{path}{query}{fragment}"


_DATES: dict[str, Signature] = {
    "now": Signature(lambda call, _arguments: moment_now(call, "sprig.now"), 0, 0),
    "ago": Signature(_ago, 1, 1),
    "date": Signature(_date, 2, 2),
    "dateInZone": Signature(_date_in_zone, 3, 3),
    "date_in_zone": Signature(_date_in_zone, 3, 3),
    "htmlDate": Signature(_html_date, 1, 1),
    "htmlDateInZone": Signature(_html_date_in_zone, 2, 2),
    "dateModify": Signature(_date_modify, 2, 2),
    "date_modify": Signature(_date_modify, 2, 2),
    "mustDateModify": Signature(_must_date_modify, 2, 2),
    "must_date_modify": Signature(_must_date_modify, 2, 2),
    "toDate": Signature(_to_date, 2, 2),
    "mustToDate": Signature(_must_to_date, 2, 2),
    "unixEpoch": Signature(_unix_epoch, 1, 1),
    "duration": Signature(_duration, 1, 1),
    "durationRound": Signature(_duration_round, 1, 1),
}
_OTHERS: dict[str, Signature] = {
    "fail": Signature(_fail, 1, 1),
    "urlParse": plain("sprig.urlParse", _url_parse, 1),
    "urlJoin": Signature(_url_join, 1, 1),
    "semverCompare": plain("sprig.semverCompare", compare, 2),
    "mustFromJson": MUST_FROM_JSON,
}
SPRIG: dict[str, Signature] = {**TEXTS, **DATA, **_DATES, **_OTHERS}
# in an expression there is no difference: a panic in a template is an error here too
SPRIG |= {
    f"must{name[0].upper()}{name[1:]}": SPRIG[name]
    for name in (
        "append",
        "chunk",
        "compact",
        "deepCopy",
        "first",
        "has",
        "initial",
        "last",
        "merge",
        "mergeOverwrite",
        "prepend",
        "push",
        "regexFind",
        "regexFindAll",
        "regexMatch",
        "regexReplaceAll",
        "regexReplaceAllLiteral",
        "regexSplit",
        "rest",
        "reverse",
        "slice",
        "toJson",
        "toPrettyJson",
        "toRawJson",
        "uniq",
        "without",
    )
}

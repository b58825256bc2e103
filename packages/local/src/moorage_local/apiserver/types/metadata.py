"""Checks and server-set fields of `metadata`, which are the same for all kinds."""

from __future__ import annotations

import re
import secrets
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.types.fields import FieldErrors

GENERATED_SUFFIX = 5  # characters that generateName adds
NAME_MAX = 253
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
ANNOTATIONS_MAX_BYTES = 256 * 1024
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of the real server: no vowels, nothing that looks like something else

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"

IS_LABEL = re.compile(_LABEL)
IS_SUBDOMAIN = re.compile(_SUBDOMAIN)
IS_LABEL_1035 = re.compile(_LABEL_1035)
_IS_QUALIFIED = re.compile(_QUALIFIED)
_IS_VALUE = re.compile(_VALUE)

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start"
    " and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end"
    " with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an"
    " alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    " '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex"
    " used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def generate_name(base: str) -> str:
    """Return a name for generateName: the base, shortened if needed, and five random characters."""
    return base[: 63 - GENERATED_SUFFIX] + "".join(secrets.choice(_ALPHABET) for _ in range(GENERATED_SUFFIX))


def name_problems(name: str, form: str) -> list[str]:
    """Return the errors in a name; form is subdomain, label, service or path."""
    match form:
        case "label":
            return _dns(name, IS_LABEL, 63, LABEL_RULE)
        case "service":
            return _dns(name, IS_LABEL_1035, 63, LABEL_1035_RULE)
        case "path":
            problems = []
            if name in (".", ".."):
                problems.append(f"may not be '{name}'")
            problems += [f"may not contain '{char}'" for char in "/%" if char in name]
            return problems
    return _dns(name, IS_SUBDOMAIN, NAME_MAX, SUBDOMAIN_RULE)


def _dns(name: str, form: re.Pattern[str], most: int, rule: str) -> list[str]:
    problems = []
    if len(name) > most:
        problems.append(f"must be no more than {most} bytes")
    if not form.fullmatch(name):
        problems.append(rule)
    return problems


def qualified_name_problems(text: str) -> list[str]:
    """Return the errors in a label key, a resource name or the like: `[domain/]name`."""
    prefix, slash, name = text.rpartition("/")
    problems = []
    if text.count("/") > 1:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and"
            " must start and end with an"
            " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
            " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/'"
            " (e.g. 'example.com/MyName')"
        ]
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in name_problems(prefix, "subdomain")]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _IS_QUALIFIED.fullmatch(name):
        problems.append(QUALIFIED_RULE)
    return problems


def label_value_problems(value: str) -> list[str]:
    problems = []
    if len(value) > 63:
        problems.append("must be no more than 63 bytes")
    if not _IS_VALUE.fullmatch(value):
        problems.append(VALUE_RULE)
    return problems


def validate_labels(labels: Any, path: str, errors: FieldErrors) -> None:
    for key, value in (labels or {}).items():
        for problem in qualified_name_problems(key):
            errors.invalid(path, key, problem)
        for problem in label_value_problems(value):
            errors.invalid(path, value, problem)


def validate_meta(
    obj: Obj, *, namespaced: bool, form: str, errors: FieldErrors, qualified_finalizers: bool = True
) -> None:
    """Check `metadata` by the rules for all kinds. Finalizers of custom kinds may have no domain."""
    meta = obj["metadata"]
    # name and namespace
    base = meta.get("generateName")
    if base:
        for problem in name_problems(base.rstrip("-") or "a" if form != "path" else base, form):
            errors.invalid("metadata.generateName", base, problem)
    name = meta.get("name")
    if not name:
        errors.required("metadata.name", "name or generateName is required")
    else:
        for problem in name_problems(name, form):
            errors.invalid("metadata.name", name, problem)
    if namespaced and not meta.get("namespace"):
        errors.required("metadata.namespace")
    if not namespaced and meta.get("namespace"):
        errors.forbidden("metadata.namespace", "not allowed on this type")
    # labels and annotations
    validate_labels(meta.get("labels"), "metadata.labels", errors)
    size = 0
    for key, value in (meta.get("annotations") or {}).items():
        for problem in qualified_name_problems(key.lower()):
            errors.invalid("metadata.annotations", key, problem)
        size += len(key) + len(value)
    if size > ANNOTATIONS_MAX_BYTES:
        errors.too_long("metadata.annotations", ANNOTATIONS_MAX_BYTES)
    # finalizers and owners
    for at, finalizer in enumerate(meta.get("finalizers") or ()):
        for problem in qualified_name_problems(finalizer):
            errors.invalid(f"metadata.finalizers[{at}]", finalizer, problem)
        if qualified_finalizers and "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            errors.invalid(
                f"metadata.finalizers[{at}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
    controllers = 0
    for ref in meta.get("ownerReferences") or ():
        for key in ("apiVersion", "kind", "name", "uid"):
            if not ref.get(key):
                text = "version must not be empty" if key == "apiVersion" else "must not be empty"
                errors.invalid(f"metadata.ownerReferences.{key}", "", text)
        controllers += bool(ref.get("controller"))
    if controllers > 1:
        errors.invalid(
            "metadata.ownerReferences",
            meta["ownerReferences"],
            "Only one reference can have Controller set to true",
        )


IMMUTABLE_META = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


def validate_identity(new: Obj, old: Obj, errors: FieldErrors) -> None:
    """Check the fields that a client may repeat but not change."""
    meta, had = new["metadata"], old["metadata"]
    for key in ("uid", "creationTimestamp"):
        if meta.get(key) and meta[key] != had.get(key):
            errors.invalid(f"metadata.{key}", meta[key], "field is immutable")


def keep_system_fields(new: Obj, old: Obj) -> None:
    """Copy the fields of `metadata` that only the server sets from the stored object."""
    meta, had = new["metadata"], old["metadata"]
    for key in (*IMMUTABLE_META, "namespace", "name", "managedFields", "generateName"):
        if key in had:
            meta[key] = had[key]
        else:
            meta.pop(key, None)


def validate_meta_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    """Check that an update adds no finalizer after the deletion began."""
    if old["metadata"].get("deletionTimestamp"):
        had = old["metadata"].get("finalizers") or []
        added = [finalizer for finalizer in new["metadata"].get("finalizers") or [] if finalizer not in had]
        if added:
            quoted = ", ".join(f'"{finalizer}"' for finalizer in added)
            errors.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted,"
                f" found new finalizers []string{{{quoted}}}",
            )

"""Labels that a user sets on a run."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.decide.runs.remarks import Remarks
from moorage.model.labels import RESERVED_DOMAINS, RESERVED_KEYS, USER_LABELS_MAX, is_reserved_label
from moorage_kube.selectors import is_label_key, is_label_value

KEY_RULE = (
    "a key has at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends;"
    " a DNS name and '/' may precede it"
)
VALUE_RULE = "a value has at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends"


def labels_from(texts: Sequence[str], remarks: Remarks) -> dict[str, str]:
    """Parse labels to a dict. If a key is repeated, the last value counts. Invalid labels are refused."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            remarks.refuse("labels", f"invalid label {text!r}: use KEY=VALUE", "for example project=vision")
        elif not is_label_key(key):
            remarks.refuse("labels", f"invalid label key {key!r}", KEY_RULE)
        elif is_reserved_label(key):
            remarks.refuse("labels", f"label {key!r} is reserved", _reserved_hint(key))
        elif not is_label_value(value):
            remarks.refuse("labels", f"invalid value {value!r} of label {key}", VALUE_RULE)
        else:
            labels[key] = value
    if len(labels) > USER_LABELS_MAX:
        remarks.refuse("labels", f"{len(labels)} labels given; at most {USER_LABELS_MAX} are allowed")
    return labels


def _reserved_hint(key: str) -> str:
    if key in RESERVED_KEYS:
        return "Kubernetes sets it itself: use another key"
    return f"use a key without a prefix, or one outside {', '.join(RESERVED_DOMAINS)}"

"""The secrets of a run: which of them it names, and where their values are in its container."""

from __future__ import annotations

from msgspec import Struct

from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import ClusterFacts, RunRequest
from moorage.model.names import is_dns_label
from moorage_kube.resources import Obj


class SecretRef(Struct, frozen=True, kw_only=True):
    """A secret that a run uses: files with a `path`, one variable with a `key`, else all keys."""

    name: str
    key: str = ""
    variable: str = ""  # of `key`
    path: str = ""

    @property
    def env(self) -> Obj:
        """The variable of a single key."""
        source = {"secretKeyRef": {"name": self.name, "key": self.key}}
        return {"name": self.variable, "valueFrom": source}


def secret_refs(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> list[SecretRef]:
    """The secrets of a request: NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH. Faults are added to `remarks`."""
    refs = []
    for text in request.secrets:
        ref = parse_secret(text)
        if ref is None:
            hint = "write NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH"
            remarks.refuse("secrets", f"invalid secret {text!r}", hint)
        elif _exists(ref, request.namespace, facts, remarks):
            refs.append(ref)
    return refs


def parse_secret(text: str) -> SecretRef | None:
    """Parse one use of a secret; None if it is invalid."""
    head, colon, place = text.partition(":")
    variable, equals, name = head.rpartition("=")
    path = place.rstrip("/") if place.startswith("/") else ""
    key = "" if path else place
    is_whole = not key
    if not is_dns_label(name) or (equals and (is_whole or not variable)) or (colon and not place):
        return None
    return SecretRef(name=name, key=key, variable="" if is_whole else variable or key, path=path)


def _exists(ref: SecretRef, namespace: str, facts: ClusterFacts, remarks: Remarks) -> bool:
    known = facts.secrets
    if known is None:
        return True
    if ref.name not in known:
        names = ", ".join(sorted(known))
        remarks.refuse(
            "secrets",
            f"secret {ref.name!r} not found in namespace {namespace}",
            f"available: {names}" if names else f"create it: moor secret create {ref.name} {ref.key or 'KEY'}",
        )
        return False
    if ref.key and ref.key not in known[ref.name]:
        keys = ", ".join(sorted(known[ref.name]))
        remarks.refuse("secrets", f"secret {ref.name!r} has no key {ref.key!r}", f"its keys: {keys}")
        return False
    return True

"""Pods of ours in a namespace that enforces Pod Security's `restricted`: missing fields are filled in.

`restricted` refuses a pod that does not say itself that it is not root and takes no privileges. Runs, workers of
maps and containers created through Docker's API get all of it, and a user: most images run as root otherwise.
Workspaces use the user of their image. The author's fields are unchanged, so Kubernetes refuses a pod that asks
for more.
https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.fields import mapping, sequence
from moorage.decide.runs.users import HOME
from moorage.model.names import (
    CONTAINER_LABEL,
    MAP_LABEL,
    RUN_AS_USER,
    RUN_AS_USER_ANNOTATION,
    RUN_LABEL,
    WORKSPACE_LABEL,
)
from moorage_kube.integers import INT32_MAX, integer_or
from moorage_kube.podsecurity import PREFIX, RESTRICTED
from moorage_kube.resources import Obj

OF_IMAGE = "image"  # the annotation's word for the user that the image names
NO_ROOT = (
    "this namespace allows no root (Pod Security restricted): pods of user 0 are refused; name another user,"
    " such as --user 1000"
)
_SECCOMP = {"type": "RuntimeDefault"}


def is_restricted(labels: Mapping[str, str]) -> bool:
    """Whether a namespace with these labels enforces the Pod Security level `restricted`."""
    return labels.get(f"{PREFIX}enforce") == RESTRICTED


def is_ours(labels: Mapping[str, str]) -> bool:
    """Whether a pod with these labels is work that a user gave to Moorage, in an image unknown to us."""
    return any(label in labels for label in (RUN_LABEL, MAP_LABEL, CONTAINER_LABEL, WORKSPACE_LABEL))


def user_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | None:
    """The user that a pod of ours runs as, by the annotations of its namespace. None: the image's user.

    A value other than a number from 1 or the word `image` is ignored.
    """
    if WORKSPACE_LABEL in labels:
        return None
    given = annotations.get(RUN_AS_USER_ANNOTATION, "")
    if given == OF_IMAGE:
        return None
    user = integer_or(given, 0, maximum=INT32_MAX)
    return user if user > 0 else RUN_AS_USER


def names_user(spec: Mapping[str, Any]) -> bool:
    """Whether the pod, or each of its containers, sets the user that it runs as."""
    if mapping(spec.get("securityContext")).get("runAsUser") is not None:
        return True
    return all(
        mapping(each.get("securityContext")).get("runAsUser") is not None for _, _, each in _containers(spec)
    )


def secure(pod: Mapping[str, Any], *, user: int | None) -> tuple[Obj, ...]:
    """JSON patches that add the fields that `restricted` requires. `user` None: the image's, if not root."""
    spec = mapping(pod.get("spec"))
    had = mapping(spec.get("securityContext"))
    context: Obj = {"runAsNonRoot": True, "seccompProfile": dict(_SECCOMP)} | _given(had)
    is_given = user is not None and not names_user(spec)
    if is_given:
        group = {"runAsGroup": user, "fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
        context = {"runAsUser": user} | group | context
    patches: list[Obj] = []
    if context != had:
        patches.append({"op": "add", "path": "/spec/securityContext", "value": context})
    for table, index, container in _containers(spec):
        path = f"/spec/{table}/{index}"
        mine = mapping(container.get("securityContext"))
        wanted: Obj = {"allowPrivilegeEscalation": False} | _given(mine)
        drop = sequence(mapping(mine.get("capabilities")).get("drop"))
        if "ALL" not in drop:
            wanted["capabilities"] = {**mapping(mine.get("capabilities")), "drop": [*drop, "ALL"]}
        if wanted != mine:
            patches.append({"op": "add", "path": f"{path}/securityContext", "value": wanted})
        if is_given and mine.get("runAsUser") is None:
            env = list(sequence(container.get("env")))
            named = {mapping(entry).get("name") for entry in env}
            more = [{"name": name, "value": value} for name, value in HOME.items() if name not in named]
            if more:
                patches.append({"op": "add", "path": f"{path}/env", "value": [*env, *more]})
    return tuple(patches)


def advice(user: int | None) -> str:
    """The warning for the user who creates such a run."""
    if user is None:
        return "this namespace allows no root (Pod Security restricted): an image that runs as root does not start"
    return (
        f"this namespace allows no root (Pod Security restricted): the containers run as user {user}, with /tmp as"
        " home; programs that need root fail"
    )


def _given(context: Mapping[str, Any]) -> Obj:
    return {key: value for key, value in context.items() if value is not None}


def _containers(spec: Mapping[str, Any]) -> list[tuple[str, int, Mapping[str, Any]]]:
    return [
        (table, index, mapping(container))
        for table in ("initContainers", "containers")
        for index, container in enumerate(sequence(spec.get(table)))
    ]

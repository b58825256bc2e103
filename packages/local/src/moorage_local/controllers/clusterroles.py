"""Fills aggregated ClusterRoles with the rules of other roles, which their label selectors match.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from moorage_kube.api import Api
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.catalogue import CLUSTERROLES
from moorage_local.informers import InformerSet


def aggregate(role: Obj, roles: Sequence[Obj]) -> list[dict[str, Any]] | None:
    """Return the rules of all roles that a role selects, in order of name.

    None for a role without an aggregation rule.
    """
    rule = role.get("aggregationRule")
    if not rule:
        return None
    rules: list[dict[str, Any]] = []
    for selector in map(label_selector_of, rule.get("clusterRoleSelectors") or ()):
        for other in sorted(roles, key=lambda role: str(role["metadata"]["name"])):
            if other["metadata"]["name"] != role["metadata"]["name"] and selector.matches(labels_of(other)):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules


class ClusterRoleAggregator:
    """Checks all aggregated roles after any role changes."""

    def __init__(self, api: Api, informers: InformerSet) -> None:
        self._api = api
        self._roles = informers.of(CLUSTERROLES)
        self.loop: ControlLoop[Key] = ControlLoop("cluster role aggregation", self.reconcile)
        self._roles.on_change(self._changed)

    def _changed(self, _before: Obj | None, _after: Obj | None) -> None:
        for role in self._roles.all():
            if role.get("aggregationRule"):
                self.loop.queue.add(key_of(role))

    async def reconcile(self, key: Key) -> timedelta | None:
        role = self._roles.get(key.name)
        wanted = None if role is None else aggregate(role, self._roles.all())
        if role is not None and wanted is not None and wanted != (role.get("rules") or []):
            with contextlib.suppress(NotFound):
                await self._api.update(CLUSTERROLES, {**role, "rules": wanted})
        return None

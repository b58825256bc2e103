"""Report the younger of two Ingresses of different namespaces that use the same host.

Admission refuses the second one, but reads a cache: two Ingresses created at the same moment may both pass.
Then an Event on the younger one, if its namespace is guarded, informs its team. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from moorage.controllers.base import Controller, Shared
from moorage.decide.admission.hosts import Claim, claims_of, slim_ingress
from moorage.model.names import GUARD_LABEL
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import INGRESSES, NAMESPACES, Obj

REASON = "HostTaken"


class HostController(Controller):
    """The controller of Ingress hosts; one per operator. Keys are Ingresses."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "host")
        self._ingresses = self._follow(INGRESSES, indexes={"host": _hosts}, keep=slim_ingress)
        self.loop.hear(self._ingresses, self._sharing)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Report every host of an Ingress that an older Ingress of another namespace already names."""
        ingress = self._ingresses.get(key.name, key.namespace)
        taken = [
            (mine.host, oldest)
            for mine in (claims_of(ingress) if ingress is not None else ())
            if (oldest := min(self._claims(mine.host))).namespace != key.namespace and oldest < mine
        ]
        if ingress is None or not taken or not await self._is_guarded(key.namespace):
            return None
        for host, oldest in taken:
            text = (
                f"{host} belongs to namespace {oldest.namespace}: its Ingress {oldest.name} was the first"
                " with this host; remove it from this Ingress"
            )
            await self._events.record(ingress, "Warning", REASON, text)
        return None

    def _sharing(self, ingress: Obj) -> set[Key]:
        """The Ingress, and all Ingresses that name one of its hosts: each may be the younger one."""
        others = (other for host in _hosts(ingress) for other in self._ingresses.by_index("host", host))
        return {key_of(ingress), *map(key_of, others)}

    def _claims(self, host: str) -> Iterable[Claim]:
        claims = (claim for ingress in self._ingresses.by_index("host", host) for claim in claims_of(ingress))
        return (claim for claim in claims if claim.host == host)

    async def _is_guarded(self, namespace: str) -> bool:
        try:
            labels = labels_of(await self._api.get(NAMESPACES, namespace))
        except NotFound:
            return False
        return labels.get(GUARD_LABEL) == "enabled"


def _hosts(ingress: Obj) -> list[str]:
    return [claim.host for claim in claims_of(ingress)]

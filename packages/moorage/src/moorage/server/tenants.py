"""The server's cache of Tenants."""

from __future__ import annotations

import logging

from moorage.model.tenant import TENANTS
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, Forbidden, NotFound
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

CACHE_SECONDS = 5.0  # how long a list is shared by all requests


class KnownTenants:
    """Every Tenant, listed at most once in CACHE_SECONDS."""

    def __init__(self, api: Api, *, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._tenants: list[Obj] = []
        self._listed_at: float | None = None

    async def all(self, *, anew: bool = False) -> list[Obj]:
        """All Tenants; empty if the server may not read them. While the API fails, the last list.

        `anew`: list the Tenants now.
        """
        now = self._clock.monotonic()
        if anew or self._listed_at is None or now - self._listed_at > CACHE_SECONDS:
            try:
                self._tenants = (await self._api.list(TENANTS)).items
            except (Forbidden, NotFound):
                self._tenants = []
            except ApiError as error:  # the last list serves on
                log.warning("the tenants could not be listed", extra={"error": error.message})
            self._listed_at = now
        return self._tenants

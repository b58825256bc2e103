"""The Tenants, as the server knows them."""

from __future__ import annotations

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import Obj
from moorage.clock import Clock
from moorage.errors import ApiError
from moorage.model.tenant import TENANTS

KEPT_SECONDS = 5.0  # how long a list serves everybody


class KnownTenants:
    """Every Tenant, listed at most once in KEPT_SECONDS."""

    def __init__(self, api: Api, *, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._tenants: list[Obj] = []
        self._listed_at: float | None = None

    async def all(self, *, anew: bool = False) -> list[Obj]:
        """None where the server may not read them. `anew`: as they are now, after a team was made."""
        now = self._clock.monotonic()
        if anew or self._listed_at is None or now - self._listed_at > KEPT_SECONDS:
            try:
                self._tenants = (await self._api.list(TENANTS)).items
            except ApiError:
                self._tenants = []
            self._listed_at = now
        return self._tenants

"""Maintain the webhook's certificate, the registrations that trust it, and the token of the web page."""

from __future__ import annotations

from moorage.cluster.certs import keep_certificates
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock


class CertificateController:
    """Maintains the certificates and the token. `run` runs until it is cancelled."""

    def __init__(self, api: Api, *, clock: Clock = SYSTEM, ours: bool = True) -> None:
        """`ours` is False if another issuer, such as cert-manager, makes the webhook's certificate."""
        self._api, self._clock, self._ours = api, clock, ours

    async def run(self) -> None:
        await keep_certificates(self._api, clock=self._clock, ours=self._ours)

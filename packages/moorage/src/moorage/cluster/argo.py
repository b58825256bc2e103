"""Detect whether Argo's own controller runs in a cluster.

It has a Lease `workflow-controller` while it runs; with an instance id, the Lease's name ends with that id.
https://argo-workflows.readthedocs.io/en/latest/high-availability/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.api import Api
from moorage_kube.meta import Key, key_of
from moorage_kube.moments import moment
from moorage_kube.resources import LEASES

LEASE_PREFIX = "workflow-controller"
LEASE_SECONDS = 15.0  # Argo's default, where the Lease does not say it
SLACK = timedelta(seconds=30)  # clocks of two machines differ, and a restarting controller is still running


async def argo_controller(api: Api, now: datetime) -> Key | None:
    """The Lease of a running Argo controller in any namespace; None if none runs. Raises ApiError."""
    return running_controller((await api.list(LEASES)).items, now)


def running_controller(leases: Iterable[Mapping[str, Any]], now: datetime) -> Key | None:
    """The Lease of a running Argo controller among these leases; None if none runs."""
    for lease in leases:
        key, spec = key_of(lease), lease.get("spec") or {}
        if not key.name.startswith(LEASE_PREFIX) or not spec.get("holderIdentity"):
            continue
        renewed = moment(spec.get("renewTime"))
        seconds = spec.get("leaseDurationSeconds")
        lasts = timedelta(seconds=seconds if isinstance(seconds, int) else LEASE_SECONDS)
        if renewed is not None and now - renewed <= lasts + SLACK:
            return key
    return None

"""Where Moorage's own server is, as its ConfigMap names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import CONFIGMAPS
from moorage.errors import ApiError
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE


async def server_url(api: Api) -> str:
    """The address of Moorage's server as pods reach it; empty when this cluster has none (or hides it)."""
    return str((await _info(api)).get("serverUrl") or "")


async def public_url(api: Api) -> str:
    """The address of Moorage's server as people reach it; empty when nobody has set one."""
    data = await _info(api)
    url = str(data.get("publicUrl") or data.get("serverUrl") or "").rstrip("/")
    host = urlsplit(url).hostname or ""
    return "" if host.endswith((".svc", ".svc.cluster.local")) else url


async def _info(api: Api) -> Mapping[str, Any]:
    """What the cluster's ConfigMap says of the platform; empty when there is none (or it is hidden)."""
    try:
        info = await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
    except ApiError:
        return {}
    return info.get("data") or {}

"""Where Moorage's own server is, as its ConfigMap names it."""

from __future__ import annotations

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import CONFIGMAPS
from moorage.errors import ApiError
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE


async def server_url(api: Api) -> str:
    """The address of Moorage's server as pods reach it; empty when this cluster has none (or hides it)."""
    try:
        info = await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
    except ApiError:
        return ""
    return str((info.get("data") or {}).get("serverUrl") or "")

"""The address of Moorage's server, from its ConfigMap."""

from __future__ import annotations

from moorage.model.info import Info, is_internal, parse_info
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage_kube.api import Api
from moorage_kube.errors import ApiError
from moorage_kube.resources import CONFIGMAPS


async def server_url(api: Api) -> str:
    """The address of Moorage's server for pods; "" if this cluster has no server, or hides its address."""
    return (await platform_info(api)).server_url


async def public_url(api: Api) -> str:
    """The address of Moorage's server for users; "" if not set."""
    info = await platform_info(api)
    url = info.public_url or info.server_url
    return "" if is_internal(url) else url


async def platform_info(api: Api) -> Info:
    """The settings of the cluster's ConfigMap; empty if it does not exist, or may not be read."""
    try:
        info = await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
    except ApiError:
        return Info()
    return parse_info(info.get("data") or {})

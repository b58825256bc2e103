"""Statistics of pods and volumes from kubelets, read with the narrowest permission.

`nodes/proxy`, by which the API server would forward the request, is the right to run commands in every pod: a
kubelet allows its holder all requests. So a kubelet is asked directly, where `nodes/stats` is enough,
and as an account that has only this right: a compromised node receives a token that is valid for nothing
else. Its certificate must be the cluster's; statistics are unknown where kubelets have other certificates.

A node without a kubelet's port is asked through the API server, under the same account.
https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import aiohttp

from moorage.model.names import KUBELETS_ACCOUNT, SYSTEM_NAMESPACE
from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339
from moorage_kube.documents import parse_json
from moorage_kube.errors import ServerError
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NODES, SERVICEACCOUNTS

log = logging.getLogger(__name__)

TOKEN_LIFE = timedelta(minutes=10)  # the least that the API server grants
RENEW_BEFORE = timedelta(minutes=2)
SUMMARY_MAX_BYTES = 16 * 2**20  # a pod takes some 5 kB, and a node holds a few hundred
PATH = "/stats/summary"


class Kubelets:
    """The kubelets of one cluster."""

    def __init__(self, api: KubeClient, *, clock: Clock = SYSTEM) -> None:
        self._api, self._clock = api, clock
        self._token: tuple[str, datetime] | None = None  # and until when it is good
        self._asking = asyncio.Lock()  # callers wait while a token is requested
        self._session: aiohttp.ClientSession | None = None
        self._warned = False

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def summary(self, node: Mapping[str, Any]) -> Any:
        """The summary of a node's kubelet, decoded. Raises ApiError, OSError, ValueError."""
        token = await self._get_token()
        where = address_of(node)
        if where is None:
            path = NODES.path(name=node["metadata"]["name"], subresource=f"proxy{PATH}")
            return parse_json(await self._api.with_token(token).raw("GET", path), bytes_max=SUMMARY_MAX_BYTES)
        try:
            return parse_json(await self._ask(f"https://{where}{PATH}", token), bytes_max=SUMMARY_MAX_BYTES)
        except aiohttp.ClientSSLError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "a kubelet's certificate is not the cluster's: use of pods and volumes is not known there",
                    extra={"node": node["metadata"]["name"], "error": str(error)},
                )
            raise ServerError(f"the kubelet at {where} is not trusted: {error}") from error
        except aiohttp.ClientError as error:
            raise ServerError(f"the kubelet at {where} does not answer: {error}") from error

    async def _ask(self, url: str, token: str) -> bytes:
        if self._session is None:
            if not self._api.connection.ca_pem:
                raise ServerError("the cluster's authority is not known, by which kubelets would be trusted")
            trusted = ssl.create_default_context(cadata=self._api.connection.ca_pem.decode())
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted, limit=32))
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ServerError(f"the kubelet answered {answer.status} to {url}", status=answer.status)
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > SUMMARY_MAX_BYTES:
                    raise ServerError(f"the kubelet's answer to {url} is longer than {SUMMARY_MAX_BYTES} bytes")
            return bytes(body)

    async def _get_token(self) -> str:
        async with self._asking:
            if self._token is None or self._clock.now() >= self._token[1] - RENEW_BEFORE:
                spec = {"expirationSeconds": int(TOKEN_LIFE.total_seconds())}
                wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
                made = await self._api.create_subresource(
                    SERVICEACCOUNTS, KUBELETS_ACCOUNT, "token", wish, SYSTEM_NAMESPACE
                )
                status = made["status"]
                self._token = (str(status["token"]), parse_rfc3339(status["expirationTimestamp"]))
            return self._token[0]


def address_of(node: Mapping[str, Any]) -> str | None:
    """The host:port of a node's kubelet; None if the node has no port or no address."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    by_type = {address.get("type"): str(address.get("address") or "") for address in status.get("addresses") or ()}
    host = by_type.get("InternalIP") or by_type.get("Hostname")
    if not port or not host:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{quote(host, safe='')}:{port}"

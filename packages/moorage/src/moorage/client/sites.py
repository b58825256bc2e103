"""Choose the server that a program uses, from its arguments, the environment, the logins and the kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from moorage.client.connection import LOGIN, NAMESPACE, Finder, Site, at_url
from moorage.client.logins import Known
from moorage.settings import KUBECONFIG, SERVER_URL, TOKEN
from moorage_kube.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of a program. `find_site` describes the defaults."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None


def finder_of(given: Given) -> Finder:
    """Return a finder for the server that `find_site` chooses."""

    async def find(stack: AsyncExitStack) -> Site:
        return await find_site(given, stack, os.environ)

    return find


async def find_site(given: Given, stack: AsyncExitStack, env: Mapping[str, str]) -> Site:
    """The server to ask: `url` (with `token`, or the login saved by `moor login`); $MOORAGE_SERVER (with
    $MOORAGE_TOKEN, or that login); the cluster of `kubeconfig`, `context` or $MOORAGE_KUBECONFIG; the last login;
    the running local cluster, or kubectl's.

    Raises UsageError for a token without a URL, NotReady if there is no server or no login.
    """
    by_cluster = given.context is not None or given.kubeconfig is not None
    if given.url is None and given.token is not None:
        raise UsageError("a token needs the URL of its server", hint="Client(server=…, token=…)")
    if given.url is not None and by_cluster:
        raise UsageError("give a URL or a kubeconfig, not both")
    url, token = given.url, given.token
    if url is None and not by_cluster and SERVER_URL.read(env):
        url, token = SERVER_URL.read(env), TOKEN.read(env) or None
    chosen = given.namespace or ""
    if url is not None and token is not None:
        source = "the argument token" if given.url is not None else f"${TOKEN.name}"
        return await _at(url, token, chosen, stack, source=source)
    known = Known.read()
    if url is None and (by_cluster or KUBECONFIG.read(env) or not known.current):
        return await _of_cluster(given, stack)
    saved = known.find(url)
    return await _at(saved.url, saved.token, chosen, stack, saved.ca)


async def _at(url: str, token: str, chosen: str, stack: AsyncExitStack, ca: str = "", source: str = LOGIN) -> Site:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"invalid server URL {url!r}: it begins with https:// or http://")
    return await at_url(url, token, chosen=chosen, ca=ca, source=source)(stack)


async def _of_cluster(given: Given, stack: AsyncExitStack) -> Site:
    from moorage.client.cluster import open_cluster
    from moorage.client.target import Target

    kubeconfig = None if given.kubeconfig is None else Path(given.kubeconfig)
    target = Target(context=given.context, kubeconfig=kubeconfig, namespace=given.namespace)
    cluster = await stack.enter_async_context(open_cluster(target))
    namespace = cluster.namespace
    chosen = given.namespace or ("" if namespace == NAMESPACE else namespace)
    return replace(await cluster.server.site(), chosen=chosen)

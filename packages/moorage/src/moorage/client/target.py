"""The options that choose a cluster, and the kubeconfig that they select."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from moorage.client.datafolder import default_folder, running_folders, running_kubeconfig, way_to
from moorage.client.logins import Known, logins_file
from moorage.settings import DATA, KUBECONFIG
from moorage_kube.errors import NotReady
from moorage_kube.remote.config import Connection, connection_of, load_connection


class Target(Struct, frozen=True, kw_only=True):
    """The options that choose the cluster, the namespace and the user."""

    context: str | None = None
    kubeconfig: Path | None = None
    namespace: str | None = None
    as_user: str | None = None
    data: Path | None = None


def choose_kubeconfig(target: Target, env: Mapping[str, str]) -> Path | None:
    """Return the kubeconfig file to use; None for kubectl's default.

    `--kubeconfig`, then `--data`, then $MOORAGE_KUBECONFIG; then, when neither a context nor $KUBECONFIG is
    set, the local cluster of the default data folder while it runs. Raises NotReady for a `--data` folder
    without a running cluster.
    """
    if target.kubeconfig is not None:
        return target.kubeconfig
    if target.data is not None:
        folder = target.data.absolute()
        kubeconfig = running_kubeconfig(folder)
        if kubeconfig is None:
            raise NotReady(
                f"there is no running cluster in {folder}", hint=f"start it: moor up --data {target.data}"
            )
        return kubeconfig
    if KUBECONFIG.read(env) or env.get("KUBECONFIG") or target.context is not None:
        return None
    return running_kubeconfig(default_folder())


def chosen_connection(target: Target) -> Connection:
    """Return the address and credentials of the Kubernetes API. Raises NotReady if a cluster is not configured.

    A login to the running local cluster itself is used in place of its administrator, unless `--data` names it.
    """
    try:
        kubeconfig = choose_kubeconfig(target, os.environ)
        connection = load_connection(kubeconfig, context=target.context)
        if kubeconfig is not None and target.kubeconfig is None and target.data is None:
            connection = login_to(connection) or connection
    except NotReady as error:
        saved = None if target.context or target.data else last_login()
        if saved is None:
            raise _with_clusters_here(error, target) from error
        connection = saved
    return replace(connection, impersonate_user=target.as_user) if target.as_user else connection


def _with_clusters_here(error: NotReady, target: Target) -> NotReady:
    """Add to an error's hint how to start the local cluster, or to reach those that run in other data folders."""
    folder = default_folder()
    is_stopped = (folder / "VERSION").exists()
    start = f"start the cluster in {folder}: moor up" if is_stopped else error.hint
    # a chosen folder is meant: clusters in other folders do not help
    way = "" if target.data or (is_stopped and DATA.read(os.environ)) else way_to(running_folders())
    return NotReady(error.message, hint="\n".join(filter(None, (start, way))))


def login_to(connection: Connection) -> Connection | None:
    """Return the cluster of the last login if it is the cluster of a connection, with the same authorities."""
    saved = last_login()
    same = saved is not None and (saved.server, saved.ca_pem) == (connection.server, connection.ca_pem)
    return saved if same else None


def last_login() -> Connection | None:
    """Return the cluster of the last login on this machine.

    None without a login, or if its server names no cluster.
    """
    known = Known.read()
    saved = known.logins.get(known.current)
    if saved is None or not saved.cluster.get("server"):
        return None
    from moorage.api.logins import ClusterAddress
    from moorage.client.kubeconfig import make_kubeconfig, token_plugin

    namespaces = [saved.namespace] if saved.namespace else []
    user = {"exec": token_plugin(saved.url)}
    made = make_kubeconfig(saved.name, ClusterAddress(**saved.cluster), user, namespaces)
    return connection_of(made, str(logins_file()))

"""Create the kubeconfig of a user who logged in, and merge it into the file that kubectl reads."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from moorage.api.logins import ClusterAddress
from moorage_kube.remote.config import EXEC_API_VERSIONS, kubeconfig_files
from moorage_kube.resources import Obj

TABLES = ("clusters", "users", "contexts")


def make_kubeconfig(
    person: str, cluster: ClusterAddress, user: Mapping[str, Any], namespaces: Sequence[str], *, name: str = ""
) -> Obj:
    """Return a kubeconfig with a context for each namespace. The first context is the current one.

    Without namespaces it has one context without a namespace. `name`: the name of the cluster, if another cluster
    uses the name that the server suggests.
    """
    name = name or cluster.name or "moorage"
    entry: Obj = {"server": cluster.server}
    if cluster.ca_data:
        entry["certificate-authority-data"] = cluster.ca_data
    elif cluster.insecure:
        entry["insecure-skip-tls-verify"] = True
    who = f"{person}@{name}"
    base = {"cluster": name, "user": who}
    contexts = [
        {"name": f"{namespace}@{name}", "context": base | {"namespace": namespace}} for namespace in namespaces
    ] or [{"name": name, "context": base}]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": contexts[0]["name"],
        "clusters": [{"name": name, "cluster": entry}],
        "users": [{"name": who, "user": dict(user)}],
        "contexts": contexts,
    }


def merge_kubeconfig(existing: Mapping[str, Any], made: Mapping[str, Any]) -> Obj:
    """Merge new entries into a kubeconfig: entries of the same name are replaced, others remain."""
    merged = {"apiVersion": "v1", "kind": "Config"} | dict(existing)
    for table in TABLES:
        names = {entry["name"] for entry in made[table]}
        kept = [entry for entry in existing.get(table) or () if entry.get("name") not in names]
        merged[table] = [*kept, *made[table]]
    merged["current-context"] = made["current-context"]
    return merged


def free_name(existing: Mapping[str, Any], cluster: ClusterAddress) -> str:
    """Return the server's name for the cluster. If another cluster has that name here, host and port are added."""
    name = cluster.name or "moorage"
    for entry in existing.get("clusters") or ():
        if entry.get("name") == name and (entry.get("cluster") or {}).get("server") != cluster.server:
            return f"{name}-{urlsplit(cluster.server).netloc.replace(':', '-')}"
    return name


def written_file(env: Mapping[str, str]) -> Path:
    """Return the kubeconfig that `moor` and kubectl read first: from $KUBECONFIG, else ~/.kube/config."""
    return kubeconfig_files(env)[0]


def token_plugin(url: str) -> Obj:
    """Return the `exec` section of a kubeconfig's user: `moor token` for this server."""
    moor = shutil.which("moor")
    command, args = (moor, []) if moor else (sys.executable, ["-m", "moorage.cli.main"])
    return {
        "apiVersion": EXEC_API_VERSIONS[0],
        "command": os.path.abspath(command) if os.sep in command else command,
        "args": [*args, "token", "--server", url],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
        "installHint": "install Moorage, then run: moor login " + url,
    }

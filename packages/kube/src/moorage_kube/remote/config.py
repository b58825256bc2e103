"""Read a kubeconfig or the ServiceAccount of the pod, and make a `Connection` of it.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from moorage_kube.documents import parse_document
from moorage_kube.errors import DocumentError, NotReady, UsageError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


POD = "the pod's service account"  # a source


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A command that prints an ExecCredential."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = EXEC_API_VERSIONS[0]
    install_hint: str = ""
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address of the API and our credentials. PEM texts are bytes; empty means absent."""

    server: str
    namespace: str = "default"
    context: str = ""
    source: str = ""  # the file (or "the pod's service account") it was read from, for messages
    ca_pem: bytes = b""  # empty: the system's own authorities
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    client_cert_pem: bytes = b""
    client_key_pem: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None  # read again as it changes; wins over `token`
    username: str = ""
    password: str = field(default="", repr=False)
    exec_plugin: ExecPlugin | None = None
    impersonate_user: str = ""
    impersonate_groups: tuple[str, ...] = ()

    @property
    def in_pod(self) -> bool:
        """Whether the connection is a pod's own: only pods may be able to reach its address."""
        return self.source == POD


def load_connection(
    kubeconfig: Path | str | None = None,
    *,
    context: str | None = None,
    env: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Connection:
    """Return the connection that `kubectl` would use here.

    `kubeconfig`: the file to read. None: the files of $MOORAGE_KUBECONFIG or $KUBECONFIG (merged; the first
    definition of a name counts), then ~/.kube/config, then the ServiceAccount of the pod. `context` None: the
    current context. Raises UsageError for an invalid file or context, NotReady if there is nothing to read.
    """
    env = os.environ if env is None else env
    listed = [str(kubeconfig)] if kubeconfig is not None else _listed(env)
    paths = [Path(kubeconfig).expanduser()] if kubeconfig is not None else kubeconfig_files(env)
    present = [path for path in paths if path.exists()]
    if kubeconfig is not None and not present:
        raise UsageError(f"kubeconfig {paths[0]} does not exist", hint="check --kubeconfig")
    if present:
        return _from_files(present, context)
    if context is None and not listed and env.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(env, service_account)
    raise NotReady(
        "cannot find a Kubernetes cluster: " + ", ".join(f"{path} does not exist" for path in paths),
        hint="log in to your team's server: moor login https://HOST; or start a cluster on this machine: moor up",
    )


def in_cluster(env: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Connection:
    """Return the connection of the pod's ServiceAccount. Raises NotReady if its files are not mounted."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT") or "443"
    try:
        namespace = (folder / "namespace").read_text().strip()
        ca = (folder / "ca.crt").read_bytes()
        (folder / "token").read_bytes()
    except OSError as error:
        raise NotReady(
            f"the pod's service account cannot be read: {error}",
            hint="check automountServiceAccountToken of the pod and its ServiceAccount",
        ) from error
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or "default",
        source=POD,
        ca_pem=ca,
        token_file=folder / "token",
    )


def kubeconfig_files(env: Mapping[str, str]) -> list[Path]:
    """Return the files of $MOORAGE_KUBECONFIG or $KUBECONFIG, else ~/.kube/config; they may not exist."""
    home = Path(env.get("HOME") or Path.home()) / ".kube" / "config"
    return [Path(path).expanduser() for path in _listed(env)] or [home]


def _listed(env: Mapping[str, str]) -> list[str]:
    text = env.get("MOORAGE_KUBECONFIG") or env.get("KUBECONFIG") or ""
    return [part for part in text.split(os.pathsep) if part]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named part of a kubeconfig, with the kubeconfig file that its relative paths start from."""

    value: Mapping[str, Any]
    file: Path


def _from_files(paths: list[Path], wanted: str | None) -> Connection:
    tables: dict[str, dict[str, _Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = ""
    for path in paths:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for plural, table in tables.items():
            singular = plural.removesuffix("s")
            for entry in document.get(plural) or ():
                if not isinstance(entry, Mapping) or "name" not in entry:
                    raise UsageError(f"kubeconfig {path}: an entry of {plural} has no name")
                table.setdefault(str(entry["name"]), _Entry(entry.get(singular) or {}, path))
    shown = ", ".join(str(path) for path in paths)
    name = wanted or current
    if not name:
        if len(tables["contexts"]) != 1 or wanted is not None:
            raise UsageError(f"kubeconfig {shown} has no current context", hint=_known(tables["contexts"]))
        name = next(iter(tables["contexts"]))
    chosen = tables["contexts"].get(name)
    if chosen is None:
        raise UsageError(f"kubeconfig {shown} has no context {name!r}", hint=_known(tables["contexts"]))
    where = f"kubeconfig {chosen.file}, context {name!r}"
    cluster = _lookup(tables["clusters"], chosen.value.get("cluster"), "cluster", where)
    user_name = chosen.value.get("user")
    user = _lookup(tables["users"], user_name, "user", where) if user_name else _Entry({}, chosen.file)
    return _connection(name, chosen, cluster, user)


def _connection(name: str, context: _Entry, cluster: _Entry, user: _Entry) -> Connection:
    where = f"kubeconfig {cluster.file}, context {name!r}"
    server = str(cluster.value.get("server") or "").rstrip("/")
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{where}: invalid server {server!r}", hint="use an address such as https://host:6443")
    token_file = user.value.get("tokenFile")
    return Connection(
        server=server,
        namespace=str(context.value.get("namespace") or "default"),
        context=name,
        source=str(context.file),
        ca_pem=_pem(cluster, "certificate-authority", where),
        insecure=bool(cluster.value.get("insecure-skip-tls-verify")),
        tls_server_name=str(cluster.value.get("tls-server-name") or ""),
        proxy_url=str(cluster.value.get("proxy-url") or ""),
        client_cert_pem=_pem(user, "client-certificate", where),
        client_key_pem=_pem(user, "client-key", where),
        token=str(user.value.get("token") or ""),
        token_file=user.file.parent / Path(token_file).expanduser() if token_file else None,
        username=str(user.value.get("username") or ""),
        password=str(user.value.get("password") or ""),
        exec_plugin=_exec(user, where),
        impersonate_user=str(user.value.get("as") or ""),
        impersonate_groups=tuple(str(group) for group in user.value.get("as-groups") or ()),
    )


def connection_of(document: Mapping[str, Any], source: str) -> Connection:
    """Return the connection of the current context in a kubeconfig that is already parsed."""
    file = Path(source)
    entries = {
        plural: {str(entry["name"]): _Entry(entry[plural.removesuffix("s")], file) for entry in document[plural]}
        for plural in ("clusters", "users", "contexts")
    }
    name = str(document["current-context"])
    context = entries["contexts"][name]
    return _connection(
        name, context, entries["clusters"][context.value["cluster"]], entries["users"][context.value["user"]]
    )


def read_kubeconfig(path: Path) -> Mapping[str, Any]:
    """Parse a kubeconfig file, without changes; empty if the file does not exist. Raises UsageError."""
    return _read(path) if path.exists() else {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = parse_document(path.read_bytes())
    except OSError as error:
        raise UsageError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except DocumentError as error:
        raise UsageError(f"kubeconfig {path} is not valid YAML: {error.located}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise UsageError(f"kubeconfig {path} is not valid: it holds a {type(document).__name__}, not a mapping")
    return document


def _lookup(table: Mapping[str, _Entry], name: Any, what: str, where: str) -> _Entry:
    entry = table.get(str(name)) if name else None
    if entry is None:
        raise UsageError(f"{where}: {what} {name!r} is not defined", hint=_known(table))
    return entry


def _known(table: Mapping[str, _Entry]) -> str:
    return "there are: " + ", ".join(sorted(table)) if table else "there are none"


def _pem(entry: _Entry, key: str, where: str) -> bytes:
    data, path = entry.value.get(f"{key}-data"), entry.value.get(key)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise UsageError(f"{where}: {key}-data is not base64") from error
    if path:
        full = entry.file.parent / Path(str(path)).expanduser()
        try:
            return full.read_bytes()
        except OSError as error:
            raise UsageError(f"{where}: {key} {full} cannot be read: {error.strerror}") from error
    return b""


def _exec(user: _Entry, where: str) -> ExecPlugin | None:
    spec = user.value.get("exec")
    if not spec:
        if user.value.get("auth-provider"):
            raise UsageError(f"{where}: auth-provider is not supported", hint="use an exec plugin")
        return None
    version = str(spec.get("apiVersion") or "")
    if version not in EXEC_API_VERSIONS:
        raise UsageError(
            f"{where}: exec apiVersion {version!r} is not supported", hint="use " + " or ".join(EXEC_API_VERSIONS)
        )
    command = str(spec.get("command") or "")
    if not command:
        raise UsageError(f"{where}: exec has no command")
    if os.sep in command:
        command = str(user.file.parent / Path(command).expanduser())
    return ExecPlugin(
        command=command,
        args=tuple(str(arg) for arg in spec.get("args") or ()),
        env={str(variable["name"]): str(variable["value"]) for variable in spec.get("env") or ()},
        api_version=version,
        install_hint=str(spec.get("installHint") or ""),
        provide_cluster_info=bool(spec.get("provideClusterInfo")),
    )

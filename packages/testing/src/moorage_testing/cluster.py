"""The clusters for tests, with one interface for all of them.

The environment chooses the cluster, so the same test runs unchanged on each:

- `MOORAGE_TEST_KUBECONFIG`: the cluster of this kubeconfig, with its current context;
- `KUBEBUILDER_ASSETS`: etcd and kube-apiserver from that folder, as in controller-runtime's envtest (and
  kube-scheduler and kube-controller-manager if the folder has them);
- neither: the local cluster, started like a user starts it.

Nodes: the local cluster runs pods as processes. The other clusters have no kubelet from us, so tests create hollow
nodes (`moorage_testing.hollow`), or are skipped with that reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from moorage.model.names import HOST_IMAGE
from moorage_kube.clock import SYSTEM
from moorage_kube.parent import end_with_parent
from moorage_kube.testing.ports import free_ports
from moorage_local.nodeagent.leftovers import stop_all
from moorage_testing.forked import fork_server

START_SECONDS = 300.0
KEPT = "kept"  # the tenant with a dedicated node on a cluster of MIXED nodes
MIXED = f"""
- {{name: node, count: 2, gpus: 2, gpuType: a100}}
- {{name: node-3}}
- {{name: node-4, gpus: 1, gpuType: t4, taints: [{{key: nvidia.com/gpu, value: present, effect: NoSchedule}}]}}
- {{name: node-5, labels: {{pool: {KEPT}}}}}
"""  # the usual cluster: two types of GPUs, one of them tainted; nodes without GPUs, one of them a tenant's
UNIFORM = ("--nodes", "2", "--gpus", "2", "--gpu-type", "a100")  # for tests that fill a cluster or count its GPUs
EVERYTHING = frozenset({"api", "scheduler", "controllers", "kubelet", "extender"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster with Moorage's services. `offers` is a subset of EVERYTHING."""

    kind: str  # local, envtest or kubeconfig
    offers: frozenset[str]
    kubeconfig: Path
    home: Path  # a folder of this cluster's own; the data folder of a local one
    restart: Callable[[], None] | None = None
    client_ca: Path | None = None  # folder with ca.crt and ca.key of the accepted client certificates
    address: str = "127.0.0.1"  # of this machine, as pods reach it; empty: they do not
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, needs: set[str]) -> str | None:
        """Return why a test with those needs cannot run on this cluster; None if it can."""
        missing = sorted(needs - self.offers)
        return f"the {self.kind} cluster has no {' and no '.join(missing)}" if missing else None

    @property
    def image(self) -> str:
        """The image of pods that really run, with Python and a shell: MOORAGE_TEST_IMAGE, or this machine."""
        return HOST_IMAGE if self.kind == "local" else os.environ.get("MOORAGE_TEST_IMAGE", "python:3.11-slim")

    @property
    def image_options(self) -> tuple[str, ...]:
        """Options of `moor run` for that image; empty on the local cluster, where it is the default."""
        return () if self.kind == "local" else ("--image", self.image)

    @property
    def python(self) -> str:
        """The command of Python in that image."""
        return sys.executable if self.kind == "local" else "python3"

    def moor(
        self,
        *args: str,
        check: bool = True,
        timeout: float = 300,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a `moor` command; with `check`, a failure raises AssertionError with its output."""
        environment = self.environment() | dict(env or {})
        done = fork_server().run(args, env=environment, cwd=cwd, stdin=stdin, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"moor {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def environment(self) -> dict[str, str]:
        """The environment of a user of this cluster."""
        env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        env |= {"MOORAGE_KUBECONFIG": str(self.kubeconfig), "MOORAGE_DATA": str(self.home), "NO_COLOR": "1"}
        return env | dict(self.extra_env)


@contextlib.contextmanager
def start_cluster(home: Path) -> Iterator[Cluster]:
    """Start the cluster that the environment chooses, or connect to it; `home` is an empty folder for it."""
    if kubeconfig := os.environ.get("MOORAGE_TEST_KUBECONFIG"):
        with _attached(Path(kubeconfig), home) as cluster:
            yield cluster
    elif assets := os.environ.get("KUBEBUILDER_ASSETS"):
        with _envtest(Path(assets), home) as cluster:
            yield cluster
    else:
        with local_cluster(home) as cluster:
            yield cluster


@contextlib.contextmanager
def local_cluster(home: Path, *options: str) -> Iterator[Cluster]:
    """`moor up` with free ports, and `moor down` at the end; `options` of `moor up`, by default MIXED nodes.

    Pods that run at the end get no grace period: pods that save their work would take half a minute of each test.
    """
    nodes = home.with_name(f"{home.name}-nodes.yaml")
    nodes.write_text(MIXED)
    chosen = options or ("--node-file", str(nodes))

    def moor(*args: str) -> None:
        done = fork_server().run(args, env=os.environ, timeout=2 * START_SECONDS)
        if done.returncode != 0:
            logs = "".join(
                f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted((home / "log").glob("*.log"))
            )
            raise AssertionError(f"moor {' '.join(args)}: {done.stdout}{done.stderr}\n{logs}")

    def up() -> None:
        moor("up", "--data", str(home), *chosen, "--port", "0", "--api-port", "0")

    def again() -> None:
        moor("up", "--data", str(home))

    up()
    try:
        if not options:
            moor("tenant", "create", KEPT, "--cpu-nodes", f"pool={KEPT}", "--data", str(home))
        yield Cluster(
            kind="local",
            offers=EVERYTHING,
            kubeconfig=home / "kubeconfig",
            home=home,
            restart=again,
            client_ca=home / "pki",
        )
    finally:
        moor("down", "--data", str(home), "--keep-pods")
        stop_all(home / "nodes", grace_seconds=0.0)


@contextlib.contextmanager
def _attached(kubeconfig: Path, home: Path) -> Iterator[Cluster]:
    """Connect to an existing cluster.

    Its kube-scheduler asks the extender only if an administrator configured it: MOORAGE_TEST_EXTENDER_PORT.
    Its pods reach the server only at an address of this machine that they can reach: MOORAGE_TEST_ADDRESS.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = os.environ.get("MOORAGE_TEST_EXTENDER_PORT")
    address = os.environ.get("MOORAGE_TEST_ADDRESS", "")
    with services(
        kubeconfig_for_services(kubeconfig, home), home, {"extender": int(port)} if port else {}, address=address
    ):
        yield Cluster(
            kind="kubeconfig",
            offers=EVERYTHING if port else EVERYTHING - {"extender"},
            kubeconfig=kubeconfig_with_token(kubeconfig, home),
            home=home,
            address=address,
        )


def kubeconfig_with_token(kubeconfig: Path, home: Path) -> Path:
    """Return a kubeconfig with a token of an administrator: the server needs a token to act for other users.

    Users without a token get the token of a service account with all rights. Kubeconfigs of kind and kubeadm have
    such users.
    """
    config, users = _read(kubeconfig)
    for user in users:
        if not {"token", "tokenFile", "exec"} & set(user["user"]):
            user["user"] = {"token": asyncio.run(_administrator_token(kubeconfig))}
    return _write(config, home / "token.kubeconfig")


def kubeconfig_for_services(kubeconfig: Path, home: Path) -> Path:
    """Return a kubeconfig of the same cluster, in which the services act as members of system:masters.

    The webhook recognizes the operator by this group, or by its service account. An administrator of kubeadm
    or of a cloud has neither, but may impersonate both. The server recognizes the operator by a token.
    """
    config, users = _read(kubeconfig_with_token(kubeconfig, home))
    for user in users:
        user["user"] |= {"as": "moorage-services", "as-groups": ["system:masters"]}
    return _write(config, home / "services.kubeconfig")


def _read(kubeconfig: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the kubeconfig with absolute paths, and the users of its current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = next(entry["context"] for entry in config["contexts"] if entry["name"] == config["current-context"])
    for kind, section in (("cluster", "clusters"), ("user", "users")):
        for entry in config[section]:
            for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
                if key in entry[kind]:  # relative to the file that names it
                    entry[kind][key] = str(kubeconfig.parent.absolute() / entry[kind][key])
    return config, [entry for entry in config["users"] if entry["name"] == context["user"]]


def _write(config: Mapping[str, Any], path: Path) -> Path:
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


async def _administrator_token(kubeconfig: Path) -> str:
    """Return a token of the service account `default/moorage-tests`, which may do everything.

    It is valid for a day.
    """
    from moorage.model.manifests import CLUSTERROLEBINDINGS, RBAC
    from moorage_kube.errors import AlreadyExists
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.resources import SERVICEACCOUNTS

    name, namespace = "moorage-tests", "default"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 86400},
    }
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        with contextlib.suppress(AlreadyExists):
            await api.create(SERVICEACCOUNTS, {"metadata": {"name": name}}, namespace)
        with contextlib.suppress(AlreadyExists):
            await api.create(CLUSTERROLEBINDINGS, binding)
        answer = await api.create_subresource(SERVICEACCOUNTS, name, "token", request, namespace)
    return str(answer["status"]["token"])


@contextlib.contextmanager
def _envtest(assets: Path, home: Path) -> Iterator[Cluster]:
    with control_plane(assets, home) as plane:
        offers = {"api"}
        if (assets / "kube-controller-manager").exists():
            plane.start_controllers()
            offers.add("controllers")
        if (assets / "kube-scheduler").exists():
            plane.start_scheduler()
            offers |= {"scheduler", "extender"}
        with services(plane.kubeconfig, home, plane.ports):
            yield Cluster(
                kind="envtest",
                offers=frozenset(offers),
                kubeconfig=plane.kubeconfig,
                home=home,
                client_ca=home / "clients",
            )


class ControlPlane:
    """etcd and kube-apiserver from a folder of binaries, on free ports of localhost.

    More binaries can be started.
    """

    def __init__(self, assets: Path, home: Path, ports: dict[str, int], stack: contextlib.ExitStack) -> None:
        self.kubeconfig = home / "kubeconfig"
        self.ports = ports
        self._assets = assets
        self._home = home
        self._stack = stack

    def start(self, name: str, *args: str) -> None:
        """Start one binary of the folder. It ends with the control plane, and logs to a file with its name."""
        self._stack.enter_context(
            run_process([str(self._assets / name), *args], self._home / f"{name}.log", self._home)
        )

    def start_controllers(self) -> None:
        self.start(
            "kube-controller-manager",
            "--kubeconfig=kubeconfig",
            "--leader-elect=false",
            "--service-account-private-key-file=sa.key",
            f"--secure-port={self.ports['kcm']}",
            "--bind-address=127.0.0.1",
            "--cert-dir=kcmcerts",
            "--node-monitor-grace-period=20s",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )

    def start_scheduler(
        self,
        *,
        extender: bool = True,
        qps: int = 500,
        stock: bool = False,
        plugins: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Start kube-scheduler with the configuration that we ship.

        `extender` False: without our extender; all else is the same. `stock`: without our extender and our
        `percentageOfNodesToScore`. `plugins`: a pluginConfig for its profile.
        """
        from moorage.model.schedulerconfig import kube_scheduler_configuration

        config: dict[str, Any] = kube_scheduler_configuration(f"http://127.0.0.1:{self.ports['extender']}")
        config = config | {
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": qps, "burst": 2 * qps},
            "leaderElection": {"leaderElect": False},
        }
        if not extender or stock:
            config.pop("extenders")
        if stock:
            config.pop("percentageOfNodesToScore")
        if plugins:
            config["profiles"] = [
                dict(profile) | {"pluginConfig": list(plugins)} for profile in config["profiles"]
            ]
        self.start_scheduler_with(yaml.safe_dump(config))

    def start_scheduler_with(self, config: str, *, port: str = "sched") -> None:
        """Start kube-scheduler with this KubeSchedulerConfiguration.

        `port`: "sched", or "second" for a second scheduler.

        The control plane authorises its clients: an administrator's rights are enough here.
        """
        file = self._home / f"{port}.yaml"
        file.write_text(config)
        self.start(
            "kube-scheduler",
            f"--config={file}",
            f"--secure-port={self.ports[port]}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={port}certs",
        )


@contextlib.contextmanager
def control_plane(assets: Path, home: Path, *, need_accounts: bool = False) -> Iterator[ControlPlane]:
    """A fresh etcd and kube-apiserver; `kubeconfig` in `home` is an administrator's.

    `need_accounts`: pods need their service account to exist, as by default; the caller must create it.
    """
    # ports, keys and a token that only this cluster uses
    home.mkdir(parents=True, exist_ok=True)
    ports = _free_ports("etcd", "peer", "api", "kcm", "sched", "second", "extender", "webhook", "server")
    token = secrets.token_urlsafe(16)
    (home / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    for word in (["genrsa", "-out", "sa.key", "2048"], ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"]):
        subprocess.run(["openssl", *word], cwd=home, check=True, capture_output=True)
    _make_client_authority(home / "clients")
    server = f"https://127.0.0.1:{ports['api']}"
    # kubeconfig of the administrator
    (home / "kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "envtest",
                "clusters": [{"name": "envtest", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "admin", "user": {"token": token}}],
                "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "admin"}}],
            }
        )
    )
    etcd_url = f"http://127.0.0.1:{ports['etcd']}"
    peer_url = f"http://127.0.0.1:{ports['peer']}"
    # etcd first: kube-apiserver ends when it cannot reach it
    with contextlib.ExitStack() as stack:
        plane = ControlPlane(assets, home, ports, stack)
        plane.start(
            "etcd",
            "--data-dir=etcd",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
        )
        _wait_for(f"{etcd_url}/health", {}, home / "etcd.log")
        plane.start(
            "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            f"--secure-port={ports['api']}",
            "--bind-address=127.0.0.1",
            "--cert-dir=apicerts",
            "--token-auth-file=tokens.csv",
            "--client-ca-file=clients/ca.crt",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            *([] if need_accounts else ["--disable-admission-plugins=ServiceAccount"]),
        )
        _wait_for(f"{server}/readyz", {"Authorization": f"Bearer {token}"}, home / "kube-apiserver.log")
        yield plane


def _make_client_authority(folder: Path) -> None:
    """Create ca.crt and ca.key of an authority for client certificates."""
    from moorage_kube.certificates import make_authority

    folder.mkdir(mode=0o700)
    authority = make_authority("clients", now=SYSTEM.now(), lifetime=timedelta(days=1))
    (folder / "ca.crt").write_bytes(authority.pem)
    (folder / "ca.key").write_bytes(authority.key_pem)


def client_certificate(folder: Path, name: str, groups: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """Return a client certificate for a user and groups, signed by ca.key of the folder, and its key, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from moorage_kube.certificates import Certificate, make_client_certificate

    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority = Certificate(certificate=signed, key=key)
    made = make_client_certificate(authority, name, groups=groups, now=SYSTEM.now(), lifetime=timedelta(hours=2))
    return made.pem, made.key_pem


@contextlib.contextmanager
def services(kubeconfig: Path, home: Path, ports: dict[str, int], *, address: str = "") -> Iterator[None]:
    """Run our four services in one process for any cluster. `address`: the address of this machine for pods."""
    ready_read, ready_write = os.pipe()
    # the image of fillers and backups: it cannot be read from a pod here
    argv = ["/usr/bin/env", "MOORAGE_IMAGE=moorage:test", sys.executable, "-m", "moorage.cli.services"]
    argv += ["--data", str(home), "--kubeconfig", str(kubeconfig)]
    argv += ["--ports", json.dumps({k: ports[k] for k in ("extender", "webhook", "server") if k in ports})]
    argv += ["--ready-fd", str(ready_write)]
    argv += ["--address", address] if address else []
    with run_process(argv, home / "services.log", home, pass_fds=(ready_write,)) as process:
        os.close(ready_write)
        message = b""
        while b"services ready" not in message:  # an error may have "already" in it
            chunk = os.read(ready_read, 4096)
            if not chunk:
                process.wait(120)
                raise AssertionError(f"the services did not start:\n{(home / 'services.log').read_text()[-4000:]}")
            message += chunk
        os.close(ready_read)
        yield


def _die_with_parent() -> None:
    """Kill the process with its parent: a kube-apiserver never stops on a signal after its etcd has stopped."""
    end_with_parent(signal.SIGKILL)


@contextlib.contextmanager
def run_process(
    argv: list[str], log: Path, cwd: Path, *, pass_fds: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends; it ends with this one, too. `log` gets its output."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            pass_fds=pass_fds,
            preexec_fn=_die_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, headers: dict[str, str], log: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, OSError):
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer within {START_SECONDS:g} s:\n{log.read_text()[-4000:]}")


def _free_ports(*names: str) -> dict[str, int]:
    return dict(zip(names, free_ports(len(names)), strict=True))


def find_kubectl() -> str | None:
    """Return the path of kubectl from KUBEBUILDER_ASSETS, else from PATH; None if it is missing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / "kubectl").exists():
        return str(Path(assets) / "kubectl")
    return shutil.which("kubectl")

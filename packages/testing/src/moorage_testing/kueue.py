"""Kueue's own manager for a control plane of `moorage_testing.cluster`.

`MOORAGE_TEST_KUEUE` names a folder with its binary `kueue-manager` and the manifests of the same release in
`manifests.yaml`, as the release publishes them. Where metrics are served over TLS the manager also reads
/etc/kueue/metrics/certs.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from moorage.cluster.certs import Issued, issue
from moorage_kube.api import Api
from moorage_kube.errors import AlreadyExists
from moorage_kube.resources import Obj, Resource
from moorage_kube.testing.ports import free_ports
from moorage_testing.cluster import START_SECONDS, ControlPlane, run_process

FOLDER = os.environ.get("MOORAGE_TEST_KUEUE", "")
FRAMEWORKS = ("batch/job", "pod", "deployment")
LEFT_OUT = ("Deployment", "APIService", "Secret", "ServiceMonitor")  # the manager is a process here


def missing_kueue() -> str:
    """Return the reason why Kueue cannot be started; empty if it can."""
    folder = Path(FOLDER)
    if not FOLDER or not (folder / "kueue-manager").exists() or not (folder / "manifests.yaml").exists():
        return "MOORAGE_TEST_KUEUE names no folder with kueue-manager and manifests.yaml"
    return ""


class Kueue:
    """Kueue's objects and manager for one control plane."""

    def __init__(self, home: Path, *, frameworks: Sequence[str] = FRAMEWORKS) -> None:
        self.home = home
        self._frameworks = list(frameworks)
        (self._port,) = free_ports(1)
        self._issued: Issued = issue(("localhost",), now=datetime.now(UTC))  # noqa: TID251

    async def install(self, api: Api) -> None:
        """Create CRDs, roles and webhooks."""
        objects = [self._by_url(obj) for obj in self._manifests() if obj["kind"] not in LEFT_OUT]
        objects.sort(key=lambda obj: obj["kind"] != "Namespace")
        objects.sort(key=lambda obj: "Webhook" in obj["kind"])
        known = {(served.api_version, served.kind): served for served in await api.discover()}  # type: ignore[attr-defined]
        for obj in objects:
            resource: Resource = known[obj["apiVersion"], obj["kind"]]
            with contextlib.suppress(AlreadyExists):
                await api.create(resource, obj, obj["metadata"].get("namespace"))

    @contextlib.contextmanager
    def run(self, plane: ControlPlane) -> Iterator[None]:
        """Run the manager until the block ends."""
        certs = self.home / "certs"
        certs.mkdir(parents=True, exist_ok=True)
        (certs / "tls.crt").write_bytes(self._issued.certificate)
        (certs / "tls.key").write_bytes(self._issued.key)
        skipped = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "kueue-system"],
        }
        config: dict[str, Any] = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": "127.0.0.1:0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(certs)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 200, "burst": 400},
            "integrations": {"frameworks": self._frameworks},
            "managedJobsNamespaceSelector": {"matchExpressions": [skipped]},
        }
        (self.home / "config.yaml").write_text(yaml.safe_dump(config))
        argv = ["/usr/bin/env", f"KUBECONFIG={plane.kubeconfig}", "NAMESPACE=kueue-system"]
        argv += [str(Path(FOLDER) / "kueue-manager"), f"--config={self.home / 'config.yaml'}"]
        argv += ["--zap-log-level=2", "--feature-gates=VisibilityOnDemand=false"]
        log = self.home / "kueue.log"
        with run_process(argv, log, self.home) as process:
            self._wait(process, log)
            yield

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"Kueue does not listen:\n{log.read_text()[-4000:]}")

    def _manifests(self) -> Iterator[Obj]:
        with (Path(FOLDER) / "manifests.yaml").open() as file:
            yield from (obj for obj in yaml.safe_load_all(file) if obj)

    def _by_url(self, obj: Obj) -> Obj:
        """Change its webhooks to URLs of this machine, in place of a Service."""
        spec = obj.get("spec") or {}
        conversion = (spec.get("conversion") or {}).get("webhook") if obj["kind"].endswith("Definition") else None
        for hook in (*(obj.get("webhooks") or ()), *([conversion] if conversion else [])):
            service = hook["clientConfig"].pop("service", {})
            hook["clientConfig"] |= {
                "url": f"https://localhost:{self._port}{service.get('path', '/convert')}",
                "caBundle": base64.b64encode(self._issued.authority).decode(),
            }
        return obj

"""Our services as separate processes on a real control plane, each of which can be killed and started again.

`moor operator`, `moor webhook`, `moor extender` and `moor server`, as their Deployments run them; their
prerequisites (definitions, rights, classes, the webhook's registration) are created before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from moorage.model.manifests import ALL
from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.errors import AlreadyExists
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import SERVICEACCOUNTS
from moorage_testing.cluster import ControlPlane, services

STOP_SECONDS = 120.0


@dataclass
class Services:
    """The processes of services by name; `start` and `kill` each of them."""

    kubeconfig: Path
    home: Path
    ports: Mapping[str, int]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """Start services; each appends its log to a file of its name."""
        for name in names:
            kubeconfig = self.home / f"{name}.kubeconfig"
            argv = [sys.executable, "-m", "moorage.cli.main", name, "--kubeconfig", str(kubeconfig)]
            argv += ["--host", "127.0.0.1", "--port", str(self.ports.get(name, 0))]
            if name == "webhook":
                folder = self.home / "pki"
                argv += ["--tls-cert", str(folder / "server.crt"), "--tls-key", str(folder / "server.key")]
            if name == "server":
                argv += ["--data", str(self.home / "usage")]
            environment = dict(os.environ) | {"MOORAGE_PAGE_TOKEN": "page"}
            with self.log(name).open("ab") as log:
                self.running[name] = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )

    def log(self, name: str) -> Path:
        """Return the path of a service's log."""
        return self.home / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a service with SIGKILL, without time to clean up."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all services with SIGTERM; kill those that do not end in time."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()


@contextlib.contextmanager
def separate_services(plane: ControlPlane, home: Path) -> Iterator[Services]:
    """Create the prerequisites of the services, start none; running services are stopped at the end."""
    with services(plane.kubeconfig, home, plane.ports):
        pass  # all in one process, once: it creates the prerequisites, on the final ports
    config = yaml.safe_load(plane.kubeconfig.read_text())
    for name, token in asyncio.run(_make_accounts(plane.kubeconfig)).items():
        users = [user | {"user": {"token": token}} for user in config["users"]]
        (home / f"{name}.kubeconfig").write_text(yaml.safe_dump(config | {"users": users}))
    made = Services(
        plane.kubeconfig, home, {name: plane.ports[name] for name in ("extender", "webhook", "server")}
    )
    try:
        yield made
    finally:
        made.stop()


async def _make_accounts(kubeconfig: Path) -> dict[str, str]:
    """Create an account for each service, with the same rights as in any installation.

    Return a token by service.
    """
    tokens = {}
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        for service in ALL:
            name = service.full_name
            with contextlib.suppress(AlreadyExists):
                await api.create(SERVICEACCOUNTS, {"metadata": {"name": name}}, SYSTEM_NAMESPACE)
            wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            made = await api.create_subresource(SERVICEACCOUNTS, name, "token", wish, SYSTEM_NAMESPACE)
            tokens[service.name] = made["status"]["token"]
    return tokens

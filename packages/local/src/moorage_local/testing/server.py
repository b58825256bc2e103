"""A Kubernetes API server, with its controllers, in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `kubeconfig`: an administrator's. `log`: its output."""

    kubeconfig: Path
    log: Path


@contextlib.contextmanager
def api_server(folder: Path, *, nodes: int = 0) -> Iterator[Server]:
    """Start the control plane on a free port of localhost; it ends with the block and with this process.

    `folder` has all stored data: another start with the same folder has the same objects. A missing folder is
    created. `nodes`: the number of nodes that run pods of the image `localhost/host` as processes of this
    machine, each with 2 CPUs and 4 GiB. Without nodes, pods stay Pending. Raises RuntimeError with the end of
    the log if the start fails.
    """
    # write the files that `moor up` would write
    folder.mkdir(parents=True, exist_ok=True)
    log, kubeconfig = folder / "control-plane.log", folder / "kubeconfig"
    token = secrets.token_urlsafe(24)
    specs = [
        {"name": f"node-{number}", "cpu_milli": 2000, "memory_bytes": 4 * GIB} for number in range(1, nodes + 1)
    ]
    (folder / "config.json").write_text(json.dumps({"nodes": specs, "ports": {"ingress": 0}}))
    (folder / "tokens.json").write_text(json.dumps({token: {"user": "admin", "groups": ["system:masters"]}}))
    (folder / "tokens.json").chmod(0o600)
    # the socket is open before the process starts, so that the port is certain
    ready, tell = os.pipe()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as sock, log.open("ab") as output:
        port = sock.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "moorage_local", "--data", str(folder)),
                *("--fds", json.dumps({"api": sock.fileno()}), "--ready-fd", str(tell)),
            ],
            pass_fds=(sock.fileno(), tell),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    os.close(tell)
    # wait for the first line: ready, or the reason of the failure
    try:
        with os.fdopen(ready, "rb") as answer:
            message = answer.readline()
        if message.strip() != b"localcluster ready":
            problem = message.decode(errors="replace").strip() or log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the control plane did not start: {problem}")
        kubeconfig.write_text(_kubeconfig(port, token, (folder / "pki" / "ca.crt").absolute()))
        kubeconfig.chmod(0o600)
        yield Server(kubeconfig, log)
    finally:
        process.terminate()
        process.wait()


def _kubeconfig(port: int, token: str, ca: Path) -> str:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}
            ],
        }
    )

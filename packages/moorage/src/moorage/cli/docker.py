"""`moor docker`: run Docker's command line with this cluster as its host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from moorage.cli import console, terminal
from moorage.cli.dockerrelay import relayed, types_into
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.client.connection import NAMESPACE, Connection
from moorage.client.discovery import By
from moorage.model.info import LOOPBACK
from moorage_kube.errors import NotReady

NAMESPACE_HEADER = "X-Moorage-Namespace"
HOST_ENV_HEADER = "X-Moorage-Host-Env"


@console.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples={
        "moor docker -- run --rm docker.io/library/python:3.12 python -V": "run an image on the cluster",
        "moor docker -- run --gpus 1 registry.example.com/train python train.py": "run an image with a GPU",
        "moor docker -- ps": "list containers",
        'eval "$(moor docker --env)"': "let other Docker clients of this shell use the cluster",
    },
)
@click.option("--env", "only_env", is_flag=True, help="Print the variables that Docker clients need, for `eval`.")
@click.option(
    "--host-env", is_flag=True, help="On a local cluster: run an image's command in this machine's environment."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@target_options
def docker(target: Target, words: tuple[str, ...], only_env: bool, host_env: bool) -> int:
    """Run a Docker command on this cluster: `moor docker -- run --gpus 1 IMAGE python train.py`.

    It needs the `docker` command, but no Docker daemon. `--env` is for other clients, such as the Python package;
    its output is valid as long as your token.
    """

    async def work(session: Session) -> int:
        url, headers = await session.server.address()
        namespace = target.namespace or session.namespace
        if target.namespace or namespace != NAMESPACE:  # the kubeconfig's: "default" may mean that it names none
            headers = headers | {NAMESPACE_HEADER: namespace}
        if host_env:
            headers = headers | {HOST_ENV_HEADER: "true"}
        if only_env:
            await _refuse_forward(session)
        ca = (await session.server.site()).ca if isinstance(session.server, Connection) else ""
        async with contextlib.AsyncExitStack() as stack:
            if program is not None and not only_env and _is_elsewhere(url) and not types_into(words):
                url, ca = await stack.enter_async_context(relayed(url, ca)), ""
            made = point(url, headers, Path(tempfile.mkdtemp(prefix="moor-docker-")), ca=ca)
            if only_env or program is None:
                for name, value in made.items():
                    console.show(f"export {name}={shlex.quote(value)}")
                return 0
            stack.callback(shutil.rmtree, made["DOCKER_CONFIG"], ignore_errors=True)
            return await _run(program, words, {**os.environ, **made})

    program = shutil.which("docker")
    if program is None and not only_env:
        raise NotReady(
            "the `docker` command is not installed on this machine",
            hint="install Docker's command line (it needs no daemon), or its Python package: `moor docker --env`",
        )
    return in_session(target, work)


async def _run(program: str, words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command; return its exit status. Ctrl-C is handled by the command."""
    child = await asyncio.create_subprocess_exec(program, *words, env=env)
    with terminal.on_signals((signal.SIGINT,), lambda: None):
        return await child.wait()


def _is_elsewhere(url: str) -> bool:
    """Whether a proxy may be between: not on this machine."""
    return urlsplit(url).hostname not in LOOPBACK


async def _refuse_forward(session: Session) -> None:
    """Raises NotReady where other programs cannot use our connection to the server."""
    route = (await session.server.site()).route if isinstance(session.server, Connection) else None
    if route is not None and route.by is By.FORWARD:
        raise NotReady(
            "cannot print variables for other programs: the server is reached by a port-forward, and the way to "
            "the server ends with this command",
            hint="run the command under it: moor docker -- COMMAND; or ask an administrator to set publicUrl",
        )


def point(url: str, headers: dict[str, str], folder: Path, *, ca: str = "") -> dict[str, str]:
    """Write Docker's configuration into the folder, readable only by its owner.

    Returns the environment that uses it.

    `ca`: PEM of the authority that signed the server's certificate; empty: those of this machine.
    """
    config = folder / "config.json"
    config.touch(mode=0o600)
    config.write_text(json.dumps({"HttpHeaders": headers}))
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    made = {"DOCKER_HOST": f"tcp://{parts.hostname}:{port}", "DOCKER_CONFIG": str(folder)}
    if parts.scheme == "https":
        trusted = ssl.get_default_verify_paths().cafile
        if ca:
            (folder / "ca.pem").write_text(ca)
        elif trusted:
            shutil.copy(trusted, folder / "ca.pem")
        made |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
    return made

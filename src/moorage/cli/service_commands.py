"""`moor operator|webhook|extender|server`: one service each, as their Deployments run them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moorage.cli.services import POLICY_VARIABLE, Settings, start
from moorage.errors import UsageError

if TYPE_CHECKING:
    from socket import socket as Socket

F = TypeVar("F", bound=Callable[..., Any])


def _options(port: int | None) -> Callable[[F], F]:
    """The options that every service takes; `port` None: it does not listen."""

    def decorate(function: F) -> F:
        function = click.option(
            "--kubeconfig",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Kubeconfig file (default: the pod's service account, else as kubectl).",
        )(function)
        if port is not None:
            function = click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")(
                function
            )
            function = click.option("--port", type=click.IntRange(0, 65535), default=port, show_default=True)(
                function
            )
        return function

    return decorate


@click.command()
@_options(None)
def operator(kubeconfig: Path | None) -> None:
    """Run the operator: it starts runs again after disruptions. One at a time, elected by a Lease."""
    start(Settings(parts=("operator",), kubeconfig=kubeconfig))


@click.command()
@_options(8443)
@click.option("--tls-cert", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--tls-key", type=click.Path(dir_okay=False, path_type=Path), required=True)
def webhook(kubeconfig: Path | None, host: str, port: int, tls_cert: Path, tls_key: Path) -> None:
    """Run the admission webhook: owners are stamped, defaults filled in, guardrails kept."""
    for path in (tls_cert, tls_key):
        if not path.exists():
            raise UsageError(
                f"{path} does not exist", hint="the Secret moorage-webhook-tls should be mounted there"
            )
    with _listening(host, port) as sock:
        start(
            Settings(
                parts=("webhook",),
                kubeconfig=kubeconfig,
                sockets={"webhook": sock},
                certificate=tls_cert,
                key=tls_key,
            )
        )


@click.command()
@_options(8888)
@click.option(
    "--policy",
    type=click.Choice(("pack", "fragmentation", "spread")),
    default="pack",
    show_default=True,
    envvar=POLICY_VARIABLE,
    show_envvar=True,
    help="Where pods go: fullest nodes first, least GPU capacity lost, or emptiest first.",
)
def extender(kubeconfig: Path | None, host: str, port: int, policy: str) -> None:
    """Run the scheduler extender: it packs GPUs. kube-scheduler goes on without it when it is down."""
    with _listening(host, port) as sock:
        start(Settings(parts=("extender",), kubeconfig=kubeconfig, sockets={"extender": sock}, policy=policy))


@click.command()
@_options(8080)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for usage.db."
)
@click.option(
    "--page-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token of the web page (default: $MOORAGE_PAGE_TOKEN).",
)
@click.option(
    "--allowed-host", "hosts", multiple=True, help="Name under which the server may be reached; repeatable."
)
def server(
    kubeconfig: Path | None, host: str, port: int, data: Path, page_token_file: Path | None, hosts: tuple[str, ...]
) -> None:
    """Run the server: REST API, web page, GPU history, metrics."""
    token = page_token_file.read_text().strip() if page_token_file else os.environ.get("MOORAGE_PAGE_TOKEN", "")
    if not token:
        raise UsageError("the web page needs a token", hint="give --page-token-file or $MOORAGE_PAGE_TOKEN")
    data.mkdir(parents=True, exist_ok=True)
    with _listening(host, port) as sock:
        start(
            Settings(
                parts=("server",),
                kubeconfig=kubeconfig,
                sockets={"server": sock},
                data=data,
                page_token=token,
                hosts=hosts,
            )
        )


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[Socket]:
    import socket

    from moorage.errors import PortTaken

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"port {port} on {host} cannot be used: {error.strerror}", hint="choose another with --port"
            ) from error
        sock.listen(512)
        sock.setblocking(False)
        yield sock

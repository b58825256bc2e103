"""`moor operator|webhook|extender|server`: run one service, as in its Deployment."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moorage import settings as table
from moorage.cli import console
from moorage.cli.services import Settings, login_settings, provider_settings, start
from moorage.model.manifests import OPERATOR
from moorage.model.retention import AUDIT_DAYS, AUDIT_DAYS_MAX, USAGE_DAYS, USAGE_DAYS_MAX
from moorage_kube.errors import UsageError

if TYPE_CHECKING:
    from socket import socket as Socket

F = TypeVar("F", bound=Callable[..., Any])


def _options(port: int | None) -> Callable[[F], F]:
    """The options that every service takes; `port`: its default port."""

    def decorate(function: F) -> F:
        for option in (
            click.option(
                "--kubeconfig",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Kubeconfig file (default: the pod's service account, else as kubectl).",
            ),
            click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on."),
            click.option(
                "--port", type=click.IntRange(0, 65535), default=port, show_default=True, help="Port to listen on."
            ),
        ):
            function = option(function)
        return function

    return decorate


@console.command(
    examples={
        "moor operator": "with the rights of its pod",
        "moor operator --kubeconfig ~/.kube/config": "from a developer's machine",
    }
)
@_options(OPERATOR.port)
def operator(kubeconfig: Path | None, host: str, port: int) -> None:
    """Run the operator: it restarts runs after disruptions. One replica is active, elected by a Lease.

    It listens for Prometheus and probes only.
    """
    with _listening(host, port) as sock:
        start(Settings(parts=("operator",), kubeconfig=kubeconfig, sockets={"operator": sock}))


@console.command(
    examples={
        "moor webhook --tls-cert tls.crt --tls-key tls.key": "on the default port",
        "moor webhook --tls-cert tls.crt --tls-key tls.key --port 9443": "on another port",
    }
)
@_options(8443)
@click.option(
    "--tls-cert", type=click.Path(dir_okay=False, path_type=Path), required=True, help="TLS certificate (PEM)."
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Key of the certificate (PEM).",
)
@click.option(
    "--audit-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File with the token in the API server's paths; without it, changes are not recorded for moor audit.",
)
def webhook(
    kubeconfig: Path | None,
    host: str,
    port: int,
    tls_cert: Path,
    tls_key: Path,
    audit_token_file: Path | None,
) -> None:
    """Run the admission webhook: it sets owners, fills in defaults and enforces guardrails."""
    for path in (tls_cert, tls_key):
        if not path.exists():
            raise UsageError(
                f"{path} does not exist", hint="the Secret moorage-webhook-tls should be mounted there"
            )
    with _listening(host, port) as sock:
        start(
            Settings(
                parts=("webhook",),
                drain_seconds=table.DRAIN_SECONDS.read(os.environ),
                kubeconfig=kubeconfig,
                sockets={"webhook": sock},
                certificate=tls_cert,
                key=tls_key,
                audit_token_file=audit_token_file,
            )
        )


@console.command(
    examples={
        "moor extender": "with the default policy",
        "moor extender --policy spread --port 9999": "emptiest nodes first, on another port",
    }
)
@_options(8888)
@click.option(
    "--policy",
    type=click.Choice(("pack", "fragmentation", "spread")),
    default=table.PACKING_POLICY.default,
    show_default=True,
    envvar=table.PACKING_POLICY.name,
    show_envvar=True,
    help="Where pods go: fullest nodes first, least GPU capacity lost, or emptiest first.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token that a scheduler puts into the path, /scheduler/TOKEN (default: not required).",
)
def extender(kubeconfig: Path | None, host: str, port: int, policy: str, token_file: Path | None) -> None:
    """Run the scheduler extender: it packs GPUs. kube-scheduler continues without it if it is down."""
    from moorage_kube.slices import ask_for_short_slices

    ask_for_short_slices()  # kube-scheduler waits for each answer
    with _listening(host, port) as sock:
        start(
            Settings(
                parts=("extender",),
                drain_seconds=table.DRAIN_SECONDS.read(os.environ),
                kubeconfig=kubeconfig,
                sockets={"extender": sock},
                policy=policy,
                scheduler_token=_read_token(token_file) if token_file is not None else "",
            )
        )


def _read_token(path: Path) -> str:
    """Return the token in a file. Raises UsageError for one that is too short, or cannot be part of a path."""
    token = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{20,}", token):
        raise UsageError(
            f"invalid token in {path}", hint="write at least 20 of A-Z, a-z, 0-9, '-' and '_' into it, on one line"
        )
    return token


@console.command(
    examples={
        "moor server --data /data": "with its files in /data",
        "moor server --data /data --public-url https://moor.example.com --behind-proxy": "behind an ingress",
        "moor server --data /data --oidc-issuer https://id.org --oidc-client-id moor": "with logins",
    }
)
@_options(8080)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for usage.db."
)
@click.option(
    "--page-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token of the web page (default: $MOORAGE_PAGE_TOKEN).",
)
@click.option("--allowed-host", "hosts", multiple=True, help="Host name of the server; repeatable.")
@click.option(
    "--public-url", help="URL of this server for browsers.", envvar=table.PUBLIC_URL.name, show_envvar=True
)
@click.option(
    "--kubernetes-url",
    help="URL of the Kubernetes API for users' kubectl (default: the URL that this server uses).",
    envvar=table.KUBERNETES_URL.name,
)
@click.option("--oidc-issuer", help="OIDC provider for logins.", envvar=table.OIDC_ISSUER.name, show_envvar=True)
@click.option(
    "--oidc-client-id",
    help="Client ID of this server at the provider.",
    envvar=table.OIDC_CLIENT_ID.name,
    show_envvar=True,
)
@click.option(
    "--oidc-client-secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the client secret, read at each use (default: a public client).",
    envvar=table.OIDC_CLIENT_SECRET_FILE.name,
)
@click.option(
    "--oidc-name-claim", help="Claim with the user's name (default: email).", envvar=table.OIDC_NAME_CLAIM.name
)
@click.option(
    "--oidc-groups-claim",
    help="Claim with the user's groups (default: groups).",
    envvar=table.OIDC_GROUPS_CLAIM.name,
)
@click.option("--oidc-scopes", help="Scopes to request, separated by spaces.", envvar=table.OIDC_SCOPES.name)
@click.option("--oidc-label", help="Name of the provider on the sign-in button.", envvar=table.OIDC_LABEL.name)
@click.option(
    "--local-accounts/--no-local-accounts",
    default=True,
    help="Let accounts of `moor user` log in (default on).",
    envvar=table.LOCAL_ACCOUNTS.name,
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Trust the last address in X-Forwarded-For: the server is behind your ingress.",
    envvar=table.BEHIND_PROXY.name,
)
@click.option(
    "--audit-days",
    type=click.IntRange(1, AUDIT_DAYS_MAX),
    default=AUDIT_DAYS,
    show_default=True,
    help="Days to keep the audit log in the database.",
    envvar=table.AUDIT_KEPT_DAYS.name,
)
@click.option(
    "--usage-days",
    type=click.IntRange(1, USAGE_DAYS_MAX),
    default=USAGE_DAYS,
    show_default=True,
    help="Days to keep the GPU usage.",
    envvar=table.USAGE_KEPT_DAYS.name,
    show_envvar=True,
)
@click.option(
    "--rate-limit",
    type=click.FloatRange(0, 1e6),
    default=table.RATE_LIMIT.default,
    show_default=True,
    help="Requests per second of one user, on average; 0: no limit.",
    envvar=table.RATE_LIMIT.name,
)
@click.option(
    "--rate-burst",
    type=click.IntRange(1, 10**6),
    default=table.RATE_BURST.default,
    show_default=True,
    help="Requests of one user in a burst.",
    envvar=table.RATE_BURST.name,
)
def server(
    kubeconfig: Path | None,
    host: str,
    port: int,
    data: Path,
    page_token_file: Path | None,
    hosts: tuple[str, ...],
    rate_limit: float,
    rate_burst: int,
    usage_days: int,
    **people: Any,
) -> None:
    """Run the server: REST API, web page, logins, GPU history, metrics."""
    token = page_token_file.read_text().strip() if page_token_file else table.PAGE_TOKEN.read(os.environ)
    if not token:
        raise UsageError("the web page needs a token", hint="give --page-token-file or $MOORAGE_PAGE_TOKEN")
    # the options are the variables by another way: one reading of them serves `moor up` too
    env = dict(os.environ) | {
        f"MOORAGE_{name.upper()}": str(value) for name, value in people.items() if value is not None
    }
    from moorage.decide.rates import Rate

    data.mkdir(parents=True, exist_ok=True)
    with _listening(host, port) as sock:
        start(
            Settings(
                parts=("server",),
                drain_seconds=table.DRAIN_SECONDS.read(os.environ),
                kubeconfig=kubeconfig,
                sockets={"server": sock},
                data=data,
                page_token=token,
                hosts=hosts,
                usage_days=usage_days,
                logins=login_settings(env),
                provider=provider_settings(env),
                rate=Rate(per_second=rate_limit, burst=rate_burst),
            )
        )


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[Socket]:
    import socket

    from moorage_kube.errors import PortTaken

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

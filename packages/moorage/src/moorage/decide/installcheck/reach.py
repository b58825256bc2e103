"""Checks of network access: ingress controllers, the public address, and the addresses of workspaces."""

from __future__ import annotations

from datetime import timedelta

from moorage.decide.installcheck.facts import Facts, Unread
from moorage.decide.installcheck.results import Result, in_order, missing, some, unread, wrong
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.workspace import parse_platform
from moorage_kube.errors import MoorageError
from moorage_kube.meta import annotations_of

DEFAULT_INGRESS = "ingressclass.kubernetes.io/is-default-class"
RENEW_BEFORE = timedelta(days=14)  # cert-manager renews at a third of the time: 30 days of 90


def ingress_class(facts: Facts) -> Result:
    """Check the ingress class. It is required if workspaces have addresses: these are Ingresses of that class."""
    if isinstance(facts.ingress_classes, Unread):
        return unread("IngressClasses", facts.ingress_classes)
    names = sorted(str(obj["metadata"]["name"]) for obj in facts.ingress_classes)
    wanted = facts.settings.get("ingressClass") or ""
    if not names:
        return missing(
            "the cluster has no IngressClass",
            "install an ingress controller (Traefik, HAProxy, Envoy Gateway), or point your own proxy to the"
            " server: docs/howto/reach-the-server.md",
        )
    if wanted and wanted not in names:
        return wrong(
            f"ingressClass {wanted!r} not found; available: {some(names)}", set_value("--ingress-class", names[0])
        )
    defaults = sorted(
        str(obj["metadata"]["name"])
        for obj in facts.ingress_classes
        if annotations_of(obj).get(DEFAULT_INGRESS) == "true"
    )
    if wanted:
        return in_order(f"workspaces use {wanted}")
    if defaults:
        return in_order(f"{defaults[0]} is the default")
    return wrong(
        f"the cluster has no default IngressClass; available: {some(names)}",
        f"kubectl annotate ingressclass {names[0]} {DEFAULT_INGRESS}=true",
        set_value("--ingress-class", names[0]),
    )


def public_url(facts: Facts) -> Result:
    """Check the public address. It is optional if all users reach the API server: they use port forwarding."""
    if facts.public is None:
        if facts.local:
            return in_order("not needed: the server listens on this machine")
        return missing(
            "publicUrl is not set: only users who reach the Kubernetes API can use Moorage",
            set_value("--public-url", "https://moorage.example.org"),
            bearable=True,
        )
    site = facts.public
    if site.untrusted:
        return wrong(
            f"{site.url} has a certificate that this machine does not trust: {site.error}",
            "docs/howto/reach-the-server.md; with your own certificate authority: moor login --ca FILE",
        )
    if site.error:
        return wrong(f"{site.url} does not answer: {site.error}", f"curl -v {site.url}/healthz")
    if site.status != 200:
        return wrong(f"{site.url}/healthz answers {site.status}, not 200", f"curl -v {site.url}/healthz")
    if site.expires is not None and site.expires - facts.now < RENEW_BEFORE:
        return wrong(
            f"the certificate of {site.url} ends at {site.expires:%Y-%m-%d %H:%M} UTC",
            f"kubectl -n {SYSTEM_NAMESPACE} get certificates,secrets",
            bearable=site.expires > facts.now,
        )
    if site.url.startswith("http://") and not facts.local:
        return wrong(
            f"{site.url} has no TLS: tokens are sent unencrypted", "docs/howto/reach-the-server.md", bearable=True
        )
    return in_order(f"{site.url} answers")


def workspace_url(facts: Facts) -> Result:
    try:
        platform = parse_platform(facts.settings)
    except MoorageError as error:
        return wrong(error.message, set_value("--workspace-url", "https://*.apps.example.org"))
    if not platform.domain:
        return missing(
            "workspaceUrl is not set: workspaces open only by `moor port-forward workspace/NAME PORT`",
            set_value("--workspace-url", "https://*.apps.example.org"),
            bearable=True,
        )
    if platform.domain == "localhost" or platform.domain.endswith(".localhost"):
        return in_order(f"browsers resolve *.{platform.domain} to this machine themselves")  # RFC 6761
    if isinstance(facts.workspace_addresses, Unread):
        return wrong(
            f"{facts.workspace_host} does not resolve: {facts.workspace_addresses.why}",
            f"add a DNS record *.{platform.domain} that leads to the ingress controller's address",
        )
    return in_order(f"*.{platform.domain} resolves to {some(list(facts.workspace_addresses), 2)}")


def set_value(option: str, value: str) -> str:
    """The command that sets one value of the installation and retains the others."""
    return f"moor install {option} '{value}'"

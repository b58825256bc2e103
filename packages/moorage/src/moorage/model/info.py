"""The addresses of the platform and its Kubernetes API, from the ConfigMap `moorage` of an admin.

https://kubernetes.io/docs/concepts/services-networking/ingress/
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
INTERNAL = (".svc", ".svc.cluster.local")  # names of Services: only pods resolve them
_SEPARATORS = re.compile(r"[\s,]+")
_PEM = "-----BEGIN CERTIFICATE-----"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
SYSTEM_CA = "system"  # in kubernetesCa: the authorities that every machine trusts
INFO_VALUES = {  # keys of the ConfigMap that an installation writes → names of its values in YAML
    "publicUrl": "publicUrl",
    "kubernetesUrl": "kubernetesUrl",
    "kubernetesCa": "kubernetesCa",
    "trustedProxies": "trustedProxies",
    "workspaceUrl": "workspaceUrl",
    "ingressClass": "ingressClass",
    "ingressTlsSecret": "tlsSecret",
    "pauseImage": "pauseImage",
    "runImage": "runImage",
}


class Info(Struct, frozen=True, kw_only=True):
    """The content of the ConfigMap; fields that it does not set are empty."""

    server_url: str = ""  # as pods reach the server
    public_urls: tuple[str, ...] = ()  # as people reach it; they are sent to the first
    kubernetes_url: str = ""  # as people reach the Kubernetes API
    kubernetes_ca: str = ""  # PEM in base64, or SYSTEM_CA; empty: as the server knows it
    trusted_proxies: tuple[Network, ...] = ()  # X-Forwarded headers of these are trusted
    run_image: str = ""  # `spec.defaults.image` of new tenants
    problems: tuple[str, ...] = ()  # values that could not be read, as sentences

    @property
    def public_url(self) -> str:
        return self.public_urls[0] if self.public_urls else ""


def parse_info(data: Mapping[str, str]) -> Info:
    """Parse the keys serverUrl, publicUrl, kubernetesUrl, kubernetesCa, trustedProxies and runImage.

    publicUrl and trustedProxies may list several values, separated by commas or blanks. An invalid value is
    skipped and reported as a problem.
    """
    problems: list[str] = []
    networks: list[Network] = []
    for text in _words(data, "trustedProxies"):
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            problems.append(f"trustedProxies has {text!r}: use a network such as 10.0.0.0/8")
    kubernetes = _urls(data, "kubernetesUrl", problems, path=True)
    return Info(
        server_url=str(data.get("serverUrl") or "").strip().rstrip("/"),
        public_urls=_urls(data, "publicUrl", problems),
        kubernetes_url=kubernetes[0] if kubernetes else "",
        kubernetes_ca=_authority(str(data.get("kubernetesCa") or "").strip(), problems),
        trusted_proxies=tuple(networks),
        run_image=str(data.get("runImage") or "").strip(),
        problems=tuple(problems),
    )


def pause_image(data: Mapping[str, str]) -> str:
    """The image of placeholder pods: the key pauseImage, or else Kubernetes' pause image."""
    return str(data.get("pauseImage") or "").strip() or PAUSE_IMAGE


def is_internal(url: str) -> bool:
    """Whether an address is the name of a Service, which only pods of the cluster can resolve."""
    return host_of(url).endswith(INTERNAL)


def host_of(url: str) -> str:
    """The host of an address in lower case, without the port; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _words(data: Mapping[str, str], key: str) -> list[str]:
    return [word for word in _SEPARATORS.split(str(data.get(key) or "")) if word]


def _urls(data: Mapping[str, str], key: str, problems: list[str], *, path: bool = False) -> tuple[str, ...]:
    urls = []
    for text in _words(data, key):
        url = text.rstrip("/")
        if fault := _fault_of(url, path=path):
            problems.append(f"{key} has {text!r}: {fault}")
        else:
            urls.append(url)
    return tuple(dict.fromkeys(urls))


def _fault_of(url: str, *, path: bool) -> str:
    """The problem with an address; "" if none. `path`: a path is allowed, as behind Rancher."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not host:
        return "write it as https://moorage.example.org"
    if parts.username is not None or parts.query or parts.fragment or (parts.path and not path):
        return "it may have a host and a port, and nothing else"
    return ""


def _authority(text: str, problems: list[str]) -> str:
    """The certificate as base64 of its PEM. The input is PEM or base64; SYSTEM_CA is returned unchanged."""
    if not text or text == SYSTEM_CA:
        return text
    try:
        pem = text if text.startswith(_PEM) else base64.b64decode("".join(text.split()), validate=True).decode()
    except ValueError:  # binascii.Error and UnicodeError are
        pem = ""
    if not pem.startswith(_PEM):
        problems.append(f"kubernetesCa is no certificate: use PEM, PEM in base64, or {SYSTEM_CA!r}")
        return ""
    return base64.b64encode(f"{pem.strip()}\n".encode()).decode()

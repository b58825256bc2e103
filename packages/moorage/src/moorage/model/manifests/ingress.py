"""The Ingress through which clients outside the cluster reach the server."""

from __future__ import annotations

from moorage.model.info import host_of, parse_info
from moorage.model.manifests.parts import make_object
from moorage.model.manifests.services import SERVER, SERVER_SERVICE
from moorage_kube.resources import INGRESSES, Obj

TUNED = {  # each controller reads its own
    "nginx.ingress.kubernetes.io/proxy-body-size": "0",  # uploads have no limit
    "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",  # seconds without a byte
    "nginx.ingress.kubernetes.io/proxy-send-timeout": "3600",
    "nginx.ingress.kubernetes.io/proxy-buffering": "off",  # logs that are followed
    "nginx.ingress.kubernetes.io/proxy-request-buffering": "off",
    "nginx.org/client-max-body-size": "0",
    "nginx.org/proxy-read-timeout": "1h",
    "nginx.org/proxy-send-timeout": "1h",
    "nginx.org/proxy-buffering": "False",
    "nginx.org/websocket-services": SERVER_SERVICE,
    "haproxy.org/timeout-server": "1h",
    "haproxy.org/timeout-tunnel": "1h",
}


def make_ingress(public_url: str, ingress_class: str = "", tls_secret: str = "") -> Obj:
    """The Ingress of the server for each host of `public_url` (several are separated by commas).

    Raises ValueError.

    "" as the class means the cluster's default. `tls_secret`: a Secret of type kubernetes.io/tls in
    SYSTEM_NAMESPACE; if it is "" with https, the controller uses its own certificate. Streams (logs,
    terminals, live pages) may be silent for an hour and must not be buffered: annotations set this for both
    NGINX controllers and for HAProxy's. Traefik has no such annotations; the `respondingTimeouts.readTimeout`
    of its entry point limits uploads.
    """
    info = parse_info({"publicUrl": public_url})
    if info.problems or not info.public_urls:
        raise ValueError("; ".join(info.problems) or "an Ingress needs a publicUrl")
    hosts = list(dict.fromkeys(host_of(url) for url in info.public_urls))
    backend = {"service": {"name": SERVER_SERVICE, "port": {"name": "http"}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    spec: Obj = {"rules": [{"host": host, "http": {"paths": paths}} for host in hosts]}
    if ingress_class:
        spec = {"ingressClassName": ingress_class} | spec
    secure = [host_of(url) for url in info.public_urls if url.startswith("https:")]
    if secure:
        spec["tls"] = [{"hosts": secure} | ({"secretName": tls_secret} if tls_secret else {})]
    made = make_object(INGRESSES, SERVER_SERVICE, labels=SERVER.labels, spec=spec)
    made["metadata"]["annotations"] = dict(TUNED)
    return made

"""The addresses of this server, and the address of the Kubernetes API for people.

Settings at the start of the process come first, then the ConfigMap `moorage`, which may change at
any time.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from moorage.model.info import LOOPBACK, SYSTEM_CA, Info, host_of, parse_info
from moorage_kube.addresses import parse_authority
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})  # as Host headers write them


class Addresses:
    """Hosts of this server, its public address, its proxies. `hosts`: names in addition to loopback; "*"
    allows all.
    """

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        public_url: str = "",
        behind_proxy: bool = False,
        cluster: Mapping[str, object] | None = None,
    ) -> None:
        """`behind_proxy`: every client is a proxy of ours, if the ConfigMap names no proxies.

        `cluster`: the Kubernetes API as this process knows it, the fields of `api.logins.ClusterAddress`;
        with `chosen`, people reach it by that address, and the ConfigMap does not change it.
        """
        self._chosen = public_url.rstrip("/")
        self._behind_proxy = behind_proxy
        self._cluster = dict(cluster or {})
        self._is_cluster_chosen = bool(self._cluster.pop("chosen", False))
        self._given_hosts = LOOPBACK_HOSTS | {host.lower() for host in hosts}
        self._info = Info()
        self._hosts = self._all_hosts()

    def follow(self, _before: Obj | None, after: Obj | None) -> None:
        """Take the new data of the ConfigMap; for its informer."""
        self.read((after or {}).get("data") or {})

    def read(self, data: Mapping[str, str]) -> None:
        """Read the data of the ConfigMap; log invalid values."""
        info = parse_info(data)
        if info.problems and info.problems != self._info.problems:
            log.warning("wrong values in the ConfigMap", extra={"problems": info.problems})
        self._info = info
        self._hosts = self._all_hosts()

    def allow(self, hosts: Iterable[str]) -> None:
        """Accept requests for these host names too."""
        self._given_hosts |= {host.lower() for host in hosts}
        self._hosts = self._all_hosts()

    def _all_hosts(self) -> frozenset[str]:
        hosts = (host_of(url) for url in (self._chosen, self._info.server_url, *self._info.public_urls))
        written = (f"[{host}]" if ":" in host else host for host in hosts if host)
        return frozenset(self._given_hosts | set(written))

    @property
    def public_url(self) -> str:
        """The address of this server for browsers; empty if it is not set, or only for this machine."""
        if self._chosen:
            return self._chosen
        return next((url for url in self._info.public_urls if host_of(url) not in LOOPBACK), "")

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names this server."""
        try:
            return parse_authority(host).host in self._hosts or "*" in self._hosts
        except ValueError:
            return False

    def base(self, scheme: str, host: str) -> str:
        """Our address for a request with this scheme and Host header.

        The configured one, or the public one of that host, or the one of the request.
        """
        return self._chosen or self._public_of(host) or f"{scheme}://{host}"

    def scheme_of(self, host: str) -> str:
        """The scheme of the public address that has this Host; "" if there is none."""
        url = self._chosen if _authority(self._chosen) == host.lower() else self._public_of(host)
        return urlsplit(url).scheme.lower()

    def _public_of(self, host: str) -> str:
        return next((url for url in self._info.public_urls if _authority(url) == host.lower()), "")

    def believes(self, client: str) -> bool:
        """Whether the X-Forwarded headers of a client with this address are trusted."""
        if not self._info.trusted_proxies:
            return self._behind_proxy
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return False
        plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((plain or address) in network for network in self._info.trusted_proxies)

    def client_of(self, peer: str, forwarded: Iterable[str]) -> str:
        """The address of a client behind proxies: the right-most one that is not a trusted proxy.

        `forwarded`: the values of X-Forwarded-For.
        """
        hops = [hop.strip() for value in forwarded for hop in value.split(",") if hop.strip()]
        address = peer
        while hops and self.believes(address):
            address = hops.pop()
            if not self._info.trusted_proxies:  # one proxy, of unknown address
                break
        return address

    def cluster(self) -> Mapping[str, object]:
        """The address of the Kubernetes API for users' kubeconfigs: the fields of `api.logins.ClusterAddress`."""
        info = self._info
        if self._is_cluster_chosen or not info.kubernetes_url:
            return self._cluster
        fields = self._cluster | {"server": info.kubernetes_url}
        fields.pop("internal", None)
        if info.kubernetes_ca:
            fields.pop("insecure", None)
            fields["caData"] = info.kubernetes_ca
        if info.kubernetes_ca == SYSTEM_CA:
            fields.pop("caData")
        return fields


def _authority(url: str) -> str:
    return urlsplit(url).netloc.lower()

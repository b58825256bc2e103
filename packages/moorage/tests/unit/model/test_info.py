"""What the platform's ConfigMap says of addresses, and the Ingress that is made of it."""

from __future__ import annotations

import base64
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.info import Info, is_internal, parse_info
from moorage.model.manifests import make_info, make_ingress

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
CA = base64.b64encode(PEM.encode()).decode()


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param({}, Info(), id="nothing"),
        pytest.param({"publicUrl": "", "kubernetesCa": " "}, Info(), id="as it is installed"),
        pytest.param(
            {"publicUrl": "https://a.example.org/, http://b.example.org:8080\nhttps://a.example.org"},
            Info(public_urls=("https://a.example.org", "http://b.example.org:8080")),
            id="several hosts",
        ),
        pytest.param(
            {"kubernetesUrl": "https://rancher.example.org/k8s/clusters/c-1", "kubernetesCa": PEM},
            Info(kubernetes_url="https://rancher.example.org/k8s/clusters/c-1", kubernetes_ca=CA),
            id="the API behind a path, its authority as PEM",
        ),
        pytest.param({"kubernetesCa": CA}, Info(kubernetes_ca=CA), id="its authority in base64"),
        pytest.param({"kubernetesCa": "system"}, Info(kubernetes_ca="system"), id="the authorities of machines"),
        pytest.param(
            {"trustedProxies": "10.1.2.3/8 fd00::/8,192.0.2.1"},
            Info(trusted_proxies=tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "fd00::/8", "192.0.2.1/32")))),
            id="proxies",
        ),
    ],
)
def test_the_config_map_is_read(data, want):
    assert parse_info(data) == want


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"publicUrl": "moorage.example.org"}, "publicUrl has 'moorage.example.org': write it as https://"),
        ({"publicUrl": "https://h.example/moorage"}, "it may have a host and a port, and nothing else"),
        ({"publicUrl": "https://me@h.example"}, "it may have a host and a port, and nothing else"),
        ({"publicUrl": "https://h:port"}, "Port could not be cast"),
        ({"publicUrl": "https://[::1"}, "Invalid IPv6 URL"),
        ({"kubernetesCa": "no"}, "kubernetesCa is no certificate: use PEM, PEM in base64, or 'system'"),
        ({"trustedProxies": "ingress"}, "trustedProxies has 'ingress': use a network such as 10.0.0.0/8"),
    ],
)
def test_a_wrong_value_is_left_out_and_is_a_problem(data, problem):
    info = parse_info(data)
    assert problem in info.problems[0]
    assert (info.public_urls, info.kubernetes_ca, info.trusted_proxies) == ((), "", ())


@given(
    st.dictionaries(st.sampled_from(["publicUrl", "kubernetesUrl", "kubernetesCa", "trustedProxies"]), st.text())
)
def test_any_text_is_read_without_an_error(data):
    assert all(url.startswith(("http://", "https://")) for url in parse_info(data).public_urls)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://moorage-server.moorage-system.svc", True),
        ("http://moorage-server.moorage-system.svc.cluster.local:80", True),
        ("https://moorage.example.org", False),
        ("http://127.0.0.1:8080", False),
        ("", False),
        ("http://[bad", False),
    ],
)
def test_names_of_services_are_internal(url, want):
    assert is_internal(url) is want


def test_what_is_written_is_read():
    written = make_info(
        "1", public_url="https://m.example", kubernetes_url="https://k.example:6443", kubernetes_ca=CA
    )
    info = parse_info(written[0]["data"])
    assert info == Info(
        server_url="http://moorage-server.moorage-system.svc",
        public_urls=("https://m.example",),
        kubernetes_url="https://k.example:6443",
        kubernetes_ca=CA,
    )


def test_an_ingress_leads_from_each_public_host_to_the_server():
    made = make_ingress("https://m.example:8443, http://lan.example", "nginx", "m-tls")
    backend = {"service": {"name": "moorage-server", "port": {"name": "http"}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    assert made["spec"] == {
        "ingressClassName": "nginx",
        "rules": [
            {"host": "m.example", "http": {"paths": paths}},
            {"host": "lan.example", "http": {"paths": paths}},
        ],
        "tls": [{"hosts": ["m.example"], "secretName": "m-tls"}],
    }
    assert made["metadata"]["namespace"] == "moorage-system"
    assert made["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "3600"


def test_an_ingress_of_plain_http_has_no_tls_and_needs_no_class():
    assert set(make_ingress("http://m.example")["spec"]) == {"rules"}
    assert make_ingress("https://m.example")["spec"]["tls"] == [{"hosts": ["m.example"]}]


@pytest.mark.parametrize("url", ["", "m.example", "https://m.example/path"])
def test_an_ingress_needs_an_address(url):
    with pytest.raises(ValueError, match="publicUrl"):
        make_ingress(url)

"""Who reads the metrics of each service of a local cluster: the configuration for Prometheus has the token."""

from __future__ import annotations

import json
import ssl
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.cluster("api")


def status_of(url: str, token: str, trusted: ssl.SSLContext | None) -> int:
    request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=120, context=trusted) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_each_service_answers_prometheus_and_no_stranger(cluster: Cluster) -> None:
    configuration = cluster.kubeconfig.parent / "prometheus.yml"
    if not configuration.exists():
        pytest.skip("only moor up writes prometheus.yml")
    jobs = json.loads(configuration.read_text())["scrape_configs"]
    assert {job["job_name"] for job in jobs} >= {"moorage-server", "moorage-webhook", "moorage-extender"}
    for job in jobs:
        (target,) = job["static_configs"][0]["targets"]
        is_tls = job.get("scheme") == "https"
        trusted = ssl.create_default_context(cafile=job["tls_config"]["ca_file"]) if is_tls else None
        url = f"{'https' if is_tls else 'http'}://{target}/metrics"
        assert status_of(url, "", trusted) == 401, job["job_name"]
        assert status_of(url, "made-up", trusted) in (401, 403), job["job_name"]
        assert status_of(url, job["authorization"]["credentials"], trusted) == 200, job["job_name"]

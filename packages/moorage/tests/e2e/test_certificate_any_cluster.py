"""An administrator whose kubeconfig has a client certificate, such as kubeadm's admin.conf."""

from __future__ import annotations

import json

import pytest
import yaml

from moorage_testing.cluster import Cluster


@pytest.fixture
def by_certificate(cluster: Cluster) -> Cluster:
    """A cluster whose kubeconfig has a certificate and no token."""
    user = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]
    if "token" in user or not user.keys() & {"client-certificate", "client-certificate-data"}:
        pytest.skip(f"the kubeconfig of the {cluster.kind} cluster has a token")
    return cluster


def test_an_administrator_by_certificate_reads_what_the_server_keeps(by_certificate, tmp_path):
    env = {"MOORAGE_CONFIG": str(tmp_path)}
    audit = by_certificate.moor("audit", "-o", "json", env=env)
    assert audit.stderr == ""
    assert json.loads(audit.stdout)
    (token,) = json.loads((tmp_path / "proofs.json").read_text()).values()
    by_certificate.moor("gpus", "--by", "user", env=env)
    assert list(json.loads((tmp_path / "proofs.json").read_text()).values()) == [token]

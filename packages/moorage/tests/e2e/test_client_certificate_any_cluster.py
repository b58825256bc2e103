"""An administrator whose kubeconfig has a client certificate and no token, as admin.conf of kubeadm."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
import yaml

from moorage.model.proofs import SIGNING_REQUESTS
from moorage_kube.errors import ServerError, Unauthorized
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_testing.cluster import Cluster, client_certificate, kubeconfig_for_services, kubeconfig_with_token

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]


def kubeconfig_of(cluster: Cluster, folder: Path, name: str, *groups: str) -> Path:
    """The cluster's kubeconfig with a client certificate in place of the token."""
    if cluster.client_ca is None:
        pytest.skip("the key that signs this cluster's client certificates is not at hand")
    certificate, key = client_certificate(cluster.client_ca, name, groups)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {
            "client-certificate-data": base64.b64encode(certificate).decode(),
            "client-key-data": base64.b64encode(key).decode(),
        }
    path = folder / f"{name}.yaml"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


async def test_a_certificate_names_its_user_and_groups(cluster: Cluster, tmp_path: Path, unique: str) -> None:
    name = f"root-{unique}"
    async with KubeClient.from_kubeconfig(kubeconfig_of(cluster, tmp_path, name, "system:masters")) as api:
        await api.create(NAMESPACES, {"metadata": {"name": unique}})
        await api.delete(NAMESPACES, unique)
    guest = kubeconfig_of(cluster, tmp_path, f"guest-{unique}", "visitors")
    done = cluster.moor("jobs", "-n", "kube-system", env={"MOORAGE_KUBECONFIG": str(guest)}, check=False)
    assert done.returncode == 1
    assert f"guest-{unique}" in done.stderr


async def test_an_administrator_with_a_certificate_is_served_by_our_server(
    cluster: Cluster, api: KubeClient, tmp_path: Path, unique: str
) -> None:
    name = f"root-{unique}"
    kubeconfig = kubeconfig_of(cluster, tmp_path, name, "system:masters")
    env = {"MOORAGE_KUBECONFIG": str(kubeconfig), "MOORAGE_CONFIG": str(tmp_path / "config")}
    audited = cluster.moor("audit", "-o", "json", env=env)  # what the server alone knows
    assert isinstance(json.loads(audited.stdout), list)
    kept = json.loads((tmp_path / "config" / "proofs.json").read_text())
    assert [row["token"][:4] for row in kept.values()] == ["mrp_"]
    left = (await api.list(SIGNING_REQUESTS)).items
    assert [obj for obj in left if obj["spec"]["username"] == name] == []


async def test_who_may_make_no_request_gets_no_token_and_is_told_what_to_do(
    cluster: Cluster, tmp_path: Path, unique: str
) -> None:
    kubeconfig = kubeconfig_of(cluster, tmp_path, f"guest-{unique}", "visitors")
    env = {"MOORAGE_KUBECONFIG": str(kubeconfig), "MOORAGE_CONFIG": str(tmp_path / "config")}
    done = cluster.moor("audit", env=env, check=False)
    assert done.returncode == 1
    assert "you may not prove who you are" in done.stderr
    assert "moorage-login-proof" in done.stderr
    assert not (tmp_path / "config" / "proofs.json").exists()


async def test_a_certificate_of_another_authority_is_nobody(cluster: Cluster, tmp_path: Path, unique: str) -> None:
    from datetime import timedelta

    from moorage_kube.certificates import make_authority
    from moorage_kube.clock import SYSTEM

    kubeconfig = kubeconfig_of(cluster, tmp_path, f"root-{unique}", "system:masters")
    authority = make_authority("strangers", now=SYSTEM.now(), lifetime=timedelta(days=1))
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "ca.key").write_bytes(authority.key_pem)
    certificate, key = client_certificate(tmp_path, f"root-{unique}", ("system:masters",))
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        # the real server answers 401, ours ends the handshake
        with pytest.raises((Unauthorized, OSError, ServerError)):
            await api.list(NAMESPACES)


def test_services_and_tests_get_a_token_where_the_kubeconfig_has_a_certificate_only(
    cluster: Cluster, tmp_path: Path, unique: str
) -> None:
    kubeconfig = kubeconfig_of(cluster, tmp_path, f"root-{unique}", "system:masters")
    (user,) = yaml.safe_load(kubeconfig_for_services(kubeconfig, tmp_path).read_text())["users"]
    assert set(user["user"]) == {"token", "as", "as-groups"}
    of_tests = kubeconfig_with_token(kubeconfig, tmp_path)
    (user,) = yaml.safe_load(of_tests.read_text())["users"]
    assert set(user["user"]) == {"token"}

    async def create_and_delete() -> None:
        async with KubeClient.from_kubeconfig(of_tests) as api:
            await api.create(NAMESPACES, {"metadata": {"name": unique}})
            await api.delete(NAMESPACES, unique)

    asyncio.run(create_and_delete())

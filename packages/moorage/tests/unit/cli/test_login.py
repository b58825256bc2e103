"""Which address of the Kubernetes API is of use where somebody logs in."""

from __future__ import annotations

import pytest

from moorage.api.logins import ClusterAddress
from moorage.cli.login import usable_here

INSIDE = ClusterAddress(server="https://10.96.0.1:443", name="moorage", internal=True)
OUTSIDE = ClusterAddress(server="https://k.example:6443", name="moorage")


@pytest.mark.parametrize(
    ("cluster", "env", "server"),
    [
        pytest.param(INSIDE, {}, "", id="for pods, and this is a laptop"),
        pytest.param(INSIDE, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, INSIDE.server, id="in a pod"),
        pytest.param(OUTSIDE, {}, OUTSIDE.server, id="for people"),
    ],
)
def test_an_address_for_pods_is_of_no_use_elsewhere(cluster, env, server):
    assert usable_here(cluster, env).server == server

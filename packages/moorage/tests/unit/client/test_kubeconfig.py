"""The kubeconfig of a login, made and merged."""

from __future__ import annotations

from moorage.api.logins import ClusterAddress
from moorage.client.kubeconfig import free_name, make_kubeconfig, merge_kubeconfig

HERE = ClusterAddress(server="https://here:6443", name="moorage", ca_data="Q0E=")
USER = {"token": "t"}


def test_each_namespace_is_a_context_and_the_first_is_current() -> None:
    assert make_kubeconfig("ada", HERE, USER, ["vision", "speech"]) == {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "vision@moorage",
        "clusters": [
            {"name": "moorage", "cluster": {"server": HERE.server, "certificate-authority-data": "Q0E="}}
        ],
        "users": [{"name": "ada@moorage", "user": USER}],
        "contexts": [
            {
                "name": f"{namespace}@moorage",
                "context": {"cluster": "moorage", "user": "ada@moorage", "namespace": namespace},
            }
            for namespace in ("vision", "speech")
        ],
    }


def test_who_is_in_no_team_gets_a_context_without_a_namespace() -> None:
    made = make_kubeconfig("ada", HERE, USER, [])
    assert made["contexts"] == [{"name": "moorage", "context": {"cluster": "moorage", "user": "ada@moorage"}}]


def test_entries_of_other_clusters_stay_and_its_own_are_replaced() -> None:
    other = {"name": "prod", "cluster": {"server": "https://prod"}}
    old = {"name": "moorage", "cluster": {"server": HERE.server, "insecure-skip-tls-verify": True}}
    made = make_kubeconfig("ada", HERE, USER, ["vision"])
    merged = merge_kubeconfig({"clusters": [other, old], "current-context": "prod", "preferences": {"a": 1}}, made)
    assert merged == made | {"preferences": {"a": 1}, "clusters": [other, *made["clusters"]]}
    assert merge_kubeconfig(merged, made) == merged


def test_a_name_that_another_cluster_has_is_not_taken_from_it() -> None:
    there = {"clusters": [{"name": "moorage", "cluster": {"server": "https://there"}}]}
    assert (free_name({}, HERE), free_name(there, HERE)) == ("moorage", "moorage-here-6443")

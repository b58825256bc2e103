"""A tenant's namespace: made, kept, left; as tables, and for any state it may be found in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.controllers.tenant.plan import (
    CLAIMS,
    COUNTS,
    OURS,
    POD_SECURITY,
    Create,
    Observed,
    Patch,
    Plan,
    Remove,
    Replace,
    objects_of,
    plan,
    taint_of,
    with_claims,
)
from moorage.model.manifests import TENANT_ROLES
from moorage.model.people import LOCAL, account_name, make_account
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import NAMESPACES, NODES
from moorage_local.controllers.garbage.leftovers import FINISHED_MAX

ADA, GRACE, LINUS = "ada@example.org", "grace", "linus"


def a_tenant(name: str = "lab", **spec: Any) -> Any:
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"namespace": name} | spec,
    }


def a_node(name: str, *, gpus: int = 0, labels: Any = None, taints: Any = None) -> Any:
    capacity = {"cpu": "8"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "labels": labels or {}, "resourceVersion": "1"},
        "spec": {"taints": taints} if taints else {},
        "status": {"capacity": capacity},
    }


class World:
    """What a cluster makes of the steps."""

    def __init__(self, tenant: Any, **more: Any) -> None:
        self.tenant, self.more = tenant, more
        self.namespace: Any = more.pop("namespace", None)
        self.held: dict[tuple[str, str], Any] = more.pop("held", {})
        self.nodes = {one["metadata"]["name"]: one for one in more.pop("nodes", ())}

    def seen(self) -> Observed:
        return Observed(
            tenant=self.tenant,
            namespace=self.namespace,
            held=dict(self.held),
            nodes=list(self.nodes.values()),
            **self.more,
        )

    def act(self, action: Any) -> None:
        match action:
            case Create(resource, obj) if resource == NAMESPACES:
                self.namespace = json.loads(json.dumps(obj))
                self.namespace["metadata"]["resourceVersion"] = "1"
            case Create(resource, obj) | Replace(resource, obj):
                self.held[resource.kind, obj["metadata"]["name"]] = json.loads(json.dumps(obj))
            case Remove(resource, name, _):
                self.held.pop((resource.kind, name), None)
            case Patch(resource, name, patch) if resource == NODES:
                self.nodes[name]["spec"]["taints"] = patch["spec"]["taints"] or []
            case Patch(_, _, patch):
                meta = self.namespace["metadata"]
                for table in ("labels", "annotations"):
                    merged = {**(meta.get(table) or {}), **(patch["metadata"].get(table) or {})}
                    meta[table] = {key: value for key, value in merged.items() if value is not None}
                if "ownerReferences" in patch["metadata"]:
                    meta["ownerReferences"] = patch["metadata"]["ownerReferences"]

    def settle(self) -> Plan:
        for _ in range(5):
            decided = plan(self.seen())
            if not decided.actions:
                return decided
            for action in decided.actions:
                self.act(action)
        raise AssertionError("never settled")


def face(world: World) -> str:
    return json.dumps([sorted(world.held.items()), world.nodes], sort_keys=True)


def subjects(world: World, role: str) -> set[str]:
    return {subject["name"] for subject in world.held["RoleBinding", TENANT_ROLES[role]]["subjects"]}


@pytest.mark.parametrize(
    ("quota", "more"),
    [
        pytest.param({"requests.nvidia.com/gpu": "8"}, {CLAIMS: "0"}, id="GPUs are limited: none may be claimed"),
        pytest.param({"requests.nvidia.com/mig-1g.10gb": "8"}, {CLAIMS: "0"}, id="slices"),
        pytest.param({"requests.nvidia.com/gpu": "8", CLAIMS: "4"}, {}, id="the admin says how many claims"),
        pytest.param(
            {"requests.nvidia.com/gpu": "8", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "4"}, {},
            id="the admin says how many devices",
        ),
        pytest.param({"cpu": "8"}, {}, id="no limit of GPUs"),
    ],
)  # fmt: skip
def test_claims_are_no_way_around_a_quota_of_gpus(quota: dict[str, str], more: dict[str, str]) -> None:
    assert with_claims(quota) == quota | more


def test_an_invalid_quota_is_reported_and_changes_nothing() -> None:
    decided = plan(Observed(tenant=a_tenant(quota={"cpus": "8"})))
    assert (decided.actions, decided.reason) == ((), "InvalidQuota")
    assert "'cpus' is not a resource of quotas" in decided.message


def test_a_short_form_in_a_manifest_limits_gpus() -> None:
    objects, _ = objects_of(a_tenant(quota={"gpu": 2}), [])
    assert objects["ResourceQuota", OURS][1]["spec"]["hard"]["requests.nvidia.com/gpu"] == "2"


def test_a_tenant_without_a_quota_has_one_of_objects_and_its_own_overrides_it() -> None:
    for quota, want in (({}, COUNTS), ({"count/configmaps": 900}, COUNTS | {"count/configmaps": "900"})):
        objects, _ = objects_of(a_tenant(quota=quota), [])
        assert objects["ResourceQuota", OURS][1]["spec"]["hard"] == want


def test_pods_and_claims_of_a_tenant_are_bounded_and_ended_pods_alone_never_use_the_bound_up() -> None:
    objects, _ = objects_of(a_tenant(), [])
    hard = objects["ResourceQuota", OURS][1]["spec"]["hard"]
    assert hard["count/persistentvolumeclaims"] == "5k"
    assert parse_quantity(hard["count/pods"]) >= FINISHED_MAX + 5_000


def test_one_resource_makes_the_namespace_and_all_that_is_in_it() -> None:
    accounts = [make_account(GRACE, ["ml"], LOCAL), make_account(LINUS, ["other"], LOCAL)]
    tenant = a_tenant(
        admins={"people": [ADA]},
        members={"groups": ["ml"]},
        quota={"requests.nvidia.com/gpu": 8, "limits.memory": "64Gi"},
        ingress={"domain": "lab.example.org", "className": "lab", "controllerNamespace": "ingress-lab"},
    )
    world = World(tenant, accounts=accounts)
    decided = world.settle()
    assert (decided.ready, decided.people) == (True, 2)
    assert world.namespace["metadata"]["labels"] == {
        "moorage.dev/guard": "enabled",
        "moorage.dev/tenant": "lab",
        POD_SECURITY: "baseline",
    }
    assert world.namespace["metadata"]["annotations"]["moorage.dev/ingress-domain"] == "lab.example.org"
    assert subjects(world, "admin") == {ADA, account_name(ADA)}
    assert subjects(world, "member") == {GRACE, account_name(GRACE), "ml"}
    assert ("RoleBinding", TENANT_ROLES["viewer"]) not in world.held
    assert world.held["ResourceQuota", OURS]["spec"]["hard"] == {
        CLAIMS: "0",
        **COUNTS,
        "limits.memory": "64Gi",
        "requests.nvidia.com/gpu": "8",
    }
    (rule,) = world.held["NetworkPolicy", OURS]["spec"]["ingress"]
    (names,) = rule["from"][1]["namespaceSelector"]["matchExpressions"]
    assert names["values"] == ["ingress-lab", "moorage-system"]


def test_a_group_is_as_large_as_its_accounts_say_and_without_who_was_put_out() -> None:
    out = make_account(LINUS, ["ml"], LOCAL)
    out["metadata"]["annotations"]["moorage.dev/disabled"] = "left"
    world = World(a_tenant(members={"groups": ["ml"]}), accounts=[make_account(GRACE, ["ml"], LOCAL), out])
    world.settle()
    assert subjects(world, "member") == {GRACE, account_name(GRACE), "ml"}
    world.more["accounts"] = [make_account(GRACE, [], LOCAL)]
    world.settle()
    assert subjects(world, "member") == {"ml"}


def test_kubernetes_own_groups_and_users_get_no_role() -> None:
    world = World(a_tenant(members={"groups": ["system:authenticated"], "people": ["system:anonymous"]}))
    world.settle()
    assert not [key for key in world.held if key[0] == "RoleBinding"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda w: w.held.clear(), id="gone"),
        pytest.param(
            lambda w: w.held["RoleBinding", TENANT_ROLES["member"]].update(
                subjects=[{"kind": "User", "name": "mallory"}]
            ),
            id="somebody let themselves in",
        ),
        pytest.param(
            lambda w: w.held["RoleBinding", TENANT_ROLES["member"]].update(
                roleRef={"kind": "ClusterRole", "name": "cluster-admin"}
            ),
            id="another role",
        ),
        pytest.param(
            lambda w: w.held["ResourceQuota", OURS]["spec"]["hard"].update({"cpu": "999"}), id="more quota"
        ),
        pytest.param(lambda w: w.held["NetworkPolicy", OURS]["spec"].update(ingress=[{}]), id="open network"),
        pytest.param(lambda w: w.namespace["metadata"]["labels"].clear(), id="unguarded"),
        pytest.param(lambda w: w.nodes["cpu"]["spec"].clear(), id="untainted"),
    ],
)
def test_what_was_changed_is_put_right(change: Any) -> None:
    tenant = a_tenant(members={"people": [ADA]}, quota={"cpu": "8"}, cpuNodes={"selector": {"pool": "lab"}})
    world = World(tenant, nodes=[a_node("cpu", labels={"pool": "lab"})])
    world.settle()
    before = face(world)
    change(world)
    assert plan(world.seen()).actions
    world.settle()
    assert face(world) == before
    assert world.namespace["metadata"]["labels"]["moorage.dev/guard"] == "enabled"


def test_nodes_with_gpus_are_shared_and_those_without_are_the_teams_alone() -> None:
    labels = {"pool": "lab"}
    nodes = [a_node("cpu", labels=labels), a_node("gpu", labels=labels, gpus=8), a_node("other")]
    world = World(a_tenant(cpuNodes={"selector": labels}), nodes=nodes)
    assert world.settle().nodes == 1
    tainted = {name for name, node in world.nodes.items() if taint_of("lab") in (node["spec"].get("taints") or [])}
    assert tainted == {"cpu"}
    world.tenant["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.settle()
    assert world.nodes["cpu"]["spec"]["taints"] == []


@pytest.mark.parametrize("namespace", ["kube-system", "moorage-system", "moorage-users", "kube-anything"])
def test_a_namespace_of_the_cluster_is_no_teams(namespace: str) -> None:
    decided = plan(Observed(tenant=a_tenant(namespace=namespace, members={"people": [ADA]})))
    assert (decided.actions, decided.reason) == ((), "NamespaceReserved")


def test_of_two_tenants_with_one_namespace_the_first_by_name_has_it() -> None:
    first, second = a_tenant("a", namespace="lab"), a_tenant("b", namespace="lab")
    assert plan(Observed(tenant=first, others=[second])).ready
    decided = plan(Observed(tenant=second, others=[first]))
    assert (decided.actions, decided.reason) == ((), "NamespaceTaken")


def test_the_namespace_goes_with_its_tenant_only_where_the_admin_says_so() -> None:
    world = World(a_tenant())
    world.settle()
    assert not world.namespace["metadata"].get("ownerReferences")
    world.tenant["spec"]["onDelete"] = "Delete"
    world.settle()
    assert [reference["uid"] for reference in world.namespace["metadata"]["ownerReferences"]] == ["uid-lab"]
    world.tenant["spec"]["onDelete"] = "Keep"
    world.settle()
    assert world.namespace["metadata"]["ownerReferences"] == []


NAMES = st.sampled_from([ADA, GRACE, LINUS, "system:admin"])
MEMBERS = st.fixed_dictionaries(
    {}, optional={"people": st.lists(NAMES), "groups": st.lists(st.sampled_from(["ml", "ops", "system:masters"]))}
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "admins": MEMBERS,
        "members": MEMBERS,
        "viewers": MEMBERS,
        "quota": st.fixed_dictionaries(
            {}, optional={"cpu": st.sampled_from([1, "2", "500m", "1.5"]), "pods": st.sampled_from([1, "2", "1k"])}
        ),
        "network": st.fixed_dictionaries({"isolated": st.booleans()}),
        "cpuNodes": st.just({"selector": {"pool": "lab"}}),
        "onDelete": st.sampled_from(["Keep", "Delete"]),
    },
)
NODE_SETS = st.lists(
    st.builds(
        a_node,
        st.sampled_from(["n1", "n2", "n3"]),
        gpus=st.integers(0, 1),
        labels=st.sampled_from([{}, {"pool": "lab"}]),
        taints=st.sampled_from([None, [{"key": "x", "effect": "NoSchedule"}], [taint_of("lab")], [taint_of("b")]]),
    ),
    unique_by=lambda one: one["metadata"]["name"],
)


@given(SPECS, SPECS, NODE_SETS, st.integers(0, 6))
def test_from_any_state_and_after_any_stop_it_settles_where_the_spec_says(
    before: Any, after: Any, nodes: Any, steps: int
) -> None:
    accounts = [make_account(one, ["ml"], LOCAL) for one in (ADA, GRACE)]
    world = World(a_tenant(**before), accounts=accounts, nodes=nodes)
    foreign = {
        name: [taint for taint in node["spec"].get("taints") or () if taint != taint_of("lab")]
        for name, node in world.nodes.items()
    }
    world.settle()
    world.tenant = a_tenant(**after)
    for action in plan(world.seen()).actions[:steps]:  # stopped half-way
        world.act(action)
    world.settle()
    wanted, _ = objects_of(world.tenant, accounts)
    assert set(world.held) == set(wanted)
    for role in ("admin", "member", "viewer"):
        binding = world.held.get(("RoleBinding", TENANT_ROLES[role]))
        assert not [
            subject for subject in (binding or {}).get("subjects", ()) if subject["name"].startswith("system:")
        ]
    for name, node in world.nodes.items():
        assert [taint for taint in node["spec"].get("taints") or () if taint != taint_of("lab")] == foreign[name]

"""What the operator's account may write for tenants, and run in namespaces of the platform."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.operators import judge_operator

POD_SECURITY = "pod-security.kubernetes.io/enforce"
BARE = {"containers": [{"name": "m", "image": "x"}], "automountServiceAccountToken": False}


def fields(kind: str, obj: Any, old: Any = None, *, namespace: str = "") -> list[str]:
    return [each.field for each in judge_operator(kind, obj, old, namespace=namespace, tenants=["lab"])]


def a_namespace(name: str, **labels: str) -> Any:
    return {"metadata": {"name": name, "labels": {key.replace("__", "/"): value for key, value in labels.items()}}}


@pytest.mark.parametrize("kind", ["RoleBinding", "NetworkPolicy", "ResourceQuota"])
@pytest.mark.parametrize(
    ("namespace", "want"),
    [
        ("lab", []),
        ("kube-system", ["metadata.namespace"]),
        ("default", ["metadata.namespace"]),
        ("moorage-system", ["metadata.namespace"]),
    ],
)
def test_what_is_for_tenants_is_written_in_their_namespaces_alone(
    kind: str, namespace: str, want: list[str]
) -> None:
    assert fields(kind, {"metadata": {"name": "x"}}, namespace=namespace) == want


OURS = {"moorage.dev/guard": "enabled", "moorage.dev/tenant": "lab"}


@pytest.mark.parametrize(
    ("name", "labels", "before", "want"),
    [
        pytest.param("lab", OURS | {POD_SECURITY: "baseline"}, None, [], id="a new one of a tenant"),
        pytest.param("lab", OURS, {}, [], id="one that becomes a tenant's"),
        pytest.param("lab", OURS, {POD_SECURITY: "baseline"}, [f"metadata.labels[{POD_SECURITY}]"], id="level"),
        pytest.param("lab", {"x": "y"}, None, ["metadata.labels[x]"], id="another label of a new one"),
        pytest.param("kube-system", OURS, {}, ["metadata.name"], id="no tenant's"),
        pytest.param("new", OURS, None, ["metadata.name"], id="a new one of no tenant"),
    ],
)
def test_labels_of_namespaces(name: str, labels: Any, before: Any, want: list[str]) -> None:
    old = None if before is None else {"metadata": {"name": name, "labels": before}}
    assert fields("Namespace", {"metadata": {"name": name, "labels": labels}}, old) == want


@pytest.mark.parametrize(
    ("spec", "namespace", "is_refused"),
    [
        pytest.param(BARE, "moorage-system", False, id="a reservation"),
        pytest.param(BARE, "kube-system", True, id="in kube-system"),
        pytest.param(BARE, "moorage-users", True, id="among people"),
        pytest.param({"containers": []}, "moorage-system", True, id="with a token"),
        pytest.param(BARE | {"serviceAccountName": "moorage-server"}, "moorage-system", True, id="as the server"),
        pytest.param(BARE | {"volumes": [{"name": "s"}]}, "moorage-system", True, id="with a volume"),
        pytest.param(
            BARE | {"containers": [{"name": "m", "envFrom": [{"secretRef": {"name": "moorage-page"}}]}]},
            "moorage-system",
            True,
            id="with a Secret",
        ),
        pytest.param({"volumes": [{"name": "s"}]}, "lab", False, id="elsewhere"),
    ],
)
def test_pods_in_namespaces_of_the_platform(spec: Any, namespace: str, is_refused: bool) -> None:
    pod = {"metadata": {"name": "x"}, "spec": spec}
    assert bool(fields("Pod", pod, namespace=namespace)) is is_refused


def test_what_runs_there_keeps_what_it_runs() -> None:
    def deployed(image: str, replicas: int) -> Any:
        template = {"spec": {"containers": [{"name": "m", "image": image}]}}
        return {"metadata": {"name": "dns"}, "spec": {"replicas": replicas, "template": template}}

    assert fields("Deployment", deployed("dns", 1), namespace="kube-system") == ["metadata.namespace"]
    assert fields("Deployment", deployed("dns", 2), deployed("dns", 1), namespace="kube-system") == []
    assert fields("Deployment", deployed("mine", 1), deployed("dns", 1), namespace="kube-system") != []

"""Who may mount the Secret of a run."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.review import MASTERS, OPERATOR, Request
from moorage.decide.admission.secrets import judge_secrets
from moorage.decide.admission.templates import WORKLOADS
from moorage.decide.runs.names import owned_secret, secret_name
from moorage.model.people import account_user

NAME = secret_name("train", "ada", "a token")
CONTROLLERS = "system:kube-controller-manager"
MOUNT: dict[str, Any] = {"volumes": [{"name": "v", "secret": {"secretName": NAME}}]}
RUN = {"moorage.dev/run": "train"}
NAMED = {
    "volume": MOUNT,
    "projected volume": {"volumes": [{"projected": {"sources": [{"secret": {"name": NAME}}]}}]},
    "variable": {"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": NAME, "key": "token"}}}]}]},
    "all keys as variables": {"initContainers": [{"envFrom": [{"secretRef": {"name": NAME}}]}]},
    "pull secret": {"imagePullSecrets": [{"name": NAME}]},
    "driver": {"volumes": [{"csi": {"driver": "x", "nodePublishSecretRef": {"name": NAME}}}]},
}


def a_workload(kind: str, spec: Any, *, owner: str = "", controller: str = "", labels: Any = None) -> Any:
    obj: Any = {"spec": spec}
    for step in reversed(WORKLOADS[kind]):
        obj = {step: obj}
    meta: Any = {"name": "x", "labels": labels or {}, "annotations": {"moorage.dev/owner": owner}}
    if controller:
        meta["ownerReferences"] = [{"kind": controller, "name": "y", "uid": "u", "controller": True}]
    return obj | {"metadata": meta}


def judge(kind: str, obj: Any, user: str, *, old: Any = None, groups: tuple[str, ...] = ()) -> bool:
    """Whether it is admitted."""
    operation = "CREATE" if old is None else "UPDATE"
    return not judge_secrets(Request(kind=kind, operation=operation, user=user, groups=groups, obj=obj, old=old))


def test_a_name_tells_whose_it_is():
    secret = owned_secret(NAME)
    assert secret is not None
    assert (secret.run, secret.is_of("ada"), secret.is_of("eve")) == ("train", True, False)
    assert owned_secret("train-run") is None


@pytest.mark.parametrize("how", list(NAMED))
@pytest.mark.parametrize("kind", ["Pod", "Job", "MapJob"])
def test_its_owner_mounts_it_and_no_other_member(kind, how):
    obj = a_workload(kind, NAMED[how], owner="ada")
    assert judge(kind, obj, "ada")
    assert not judge(kind, obj, "eve")


@pytest.mark.parametrize("kind", sorted(WORKLOADS.keys() - {"Pod", "Job", "MapJob"}))
def test_a_template_that_other_members_may_change_names_none(kind):
    assert not judge(kind, a_workload(kind, MOUNT, owner="ada"), "ada")


def test_a_client_that_knows_only_the_account_names_it_after_that():
    spec = {"volumes": [{"secret": {"secretName": secret_name("train", account_user("ada"), "a token")}}]}
    assert judge("Job", a_workload("Job", spec), "ada")
    assert not judge("Job", a_workload("Job", spec), "eve")


def test_the_field_and_what_is_allowed_are_said():
    [refusal] = judge_secrets(Request(kind="Pod", operation="CREATE", user="eve", obj=a_workload("Pod", MOUNT)))
    assert str(refusal) == (
        f"spec.volumes[0].secret.secretName: must not be the Secret of a run that another user owns (found {NAME})"
    )


@pytest.mark.parametrize(
    ("kind", "user", "owner", "controller", "labels", "is_admitted"),
    [
        pytest.param("Pod", CONTROLLERS, "ada", "Job", {}, True, id="pod of the run's Job"),
        pytest.param("Pod", CONTROLLERS, "eve", "Job", {}, False, id="pod of another member's Job"),
        pytest.param("Pod", CONTROLLERS, "ada", "ReplicaSet", {}, False, id="pod of a Deployment"),
        pytest.param("Pod", OPERATOR, "ada", "Workflow", RUN, False, id="step of a workflow"),
        pytest.param("Job", OPERATOR, "ada", "", RUN, True, id="next attempt of the run"),
        pytest.param("Job", OPERATOR, "ada", "", {"moorage.dev/map": "train"}, True, id="workers of the map"),
        pytest.param("Job", OPERATOR, "ada", "", {}, False, id="Job of a dataset that says it is hers"),
        pytest.param("Job", OPERATOR, "eve", "", RUN, False, id="attempt of another's run of that name"),
        pytest.param("Job", CONTROLLERS, "ada", "CronJob", RUN, False, id="Job of a schedule"),
    ],
)  # fmt: skip
def test_of_what_controllers_make_only_the_run_itself_mounts_it(
    kind, user, owner, controller, labels, is_admitted
):
    obj = a_workload(kind, MOUNT, owner=owner, controller=controller, labels=labels)
    assert judge(kind, obj, user) is is_admitted


def test_another_member_changes_neither_the_command_nor_the_template_of_a_map_with_it():
    old = a_workload("MapJob", MOUNT, owner="ada")
    assert judge("MapJob", old | {"metadata": {"finalizers": []}}, "eve", old=old)
    changed = a_workload("MapJob", MOUNT, owner="ada")
    changed["spec"]["command"] = ["cat", "/moorage-work/x"]
    assert not judge("MapJob", changed, "eve", old=old)
    assert judge("MapJob", changed, "ada", old=old)


def test_an_administrator_brings_back_what_was():
    assert judge("Job", a_workload("Job", MOUNT, owner="ada"), "root", groups=(MASTERS,))

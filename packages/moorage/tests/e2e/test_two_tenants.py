"""Two tenants: whatever one tries to reach the other's things is refused; as one table.

Mallory rules in her own tenant (`b`) and tries for Ada's (`a`). Every attempt is one line of ATTEMPTS: add one by
adding a line. Its texts are filled in from `Scene.names`; the answer must be one of `refused`, and must never hold
SECRET, which stands in all that is Ada's. Where `control` is given, the same request by Ada herself goes through, so
that no attempt is refused for being wrong.
"""

# ruff: noqa: E501  (one attempt is one line)

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import pytest

from moorage.actions import people
from moorage.cluster.serverurl import server_url
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL, account_name, account_user
from moorage.model.tenant import TENANTS
from moorage.model.workspace import WORKSPACES, parse_platform
from moorage_kube.errors import AlreadyExists, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import (
    CONFIGMAPS,
    JOBS,
    NAMESPACES,
    NODES,
    PRIORITYCLASSES,
    PVCS,
    SECRETS,
    SERVICEACCOUNTS,
)
from moorage_kube.resources import INGRESSES as KUBE_INGRESSES
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api"), pytest.mark.xdist_group("tenants")]

SECRET = "ada-keeps-this"
PASSWORD = "a password of some length"
NO, HIDDEN, INVALID = (401, 403), (401, 403, 404), (403, 422)
MERGE = "application/merge-patch+json"
POD = {
    "containers": [{"name": "m", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}],
    "restartPolicy": "Never",
}
JOB = {"spec": {"suspend": True, "template": {"spec": POD}}}
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Attempt:
    """One request. `to`: the Kubernetes API, or Moorage's server; `by`: whose credentials, a key of `Scene.tokens`."""

    id: str
    to: Literal["kube", "server"]
    method: str
    path: str
    body: Any = None
    by: str = ""  # default: mallory's token for that side
    headers: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[int, ...] = NO
    control: bool = False
    content_type: str = ""


def kube(id: str, method: str, path: str, body: Any = None, **more: Any) -> Attempt:
    if method == "PATCH":
        more.setdefault("content_type", MERGE)
    return Attempt(id, "kube", method, path, body, **more)


def server(id: str, method: str, path: str, body: Any = None, **more: Any) -> Attempt:
    return Attempt(id, "server", method, path, body, refused=more.pop("refused", HIDDEN), **more)


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def binding(role: str) -> Any:
    subject = {"kind": "ServiceAccount", "name": "{mallory_account}", "namespace": "moorage-users"}
    return {
        "metadata": {"name": "mallory"},
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
    }


def a_pod(**spec: Any) -> Any:
    return {"metadata": {"name": "mallory"}, "spec": POD | spec}


def an_ingress(host: str, path: str = "/", **spec: Any) -> Any:
    backend = {"service": {"name": "x", "port": {"number": 80}}}
    rule = {"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}
    return {"metadata": {"name": "mallory"}, "spec": {"rules": [rule]} | spec}


def annotated(**notes: str) -> Any:
    """An Ingress for a host of her own, with annotations of ingress-nginx."""
    made = an_ingress("own.example.net")
    made["metadata"]["annotations"] = {
        f"nginx.ingress.kubernetes.io/{k.replace('_', '-')}": v for k, v in notes.items()
    }
    return made


def a_service(**spec: Any) -> Any:
    return {"metadata": {"name": "mallory"}, "spec": {"ports": [{"port": 80}]} | spec}


def templated(**spec: Any) -> Any:
    labels = {"app": "mallory"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": POD["containers"]} | spec}
    return {"metadata": {"name": "mallory"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


OURS = "/apis/moorage.dev/v1alpha1"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/{b}/ingresses?dryRun=All"
INGRESS_OF_HERS = "/apis/networking.k8s.io/v1/namespaces/{b}/ingresses/own"
LAB_HOST = "thing--{a}.{apps}"
IN_A, IN_B, PEOPLE = "/api/v1/namespaces/{a}", "/api/v1/namespaces/{b}", "/api/v1/namespaces/moorage-users"
DRY = "?dryRun=All"
A_LAB = {"type": "jupyterlab", "running": False, "resources": {"cpu": "100m", "memory": "64Mi"}}
A_DATASET = {"source": {"url": f"https://nowhere.invalid/{SECRET}/"}, "size": "1Mi"}
A_RUN = {"command": ["echo", SECRET], "image": "x", "hostEnv": True, "cpu": "100m", "memory": "64Mi"}
HOST_ENV = {"localcluster.moorage.dev/host-env": "true"}  # a local cluster pulls no image
AS_IF_IN_A = {"X-Moorage-Namespace": "{a}"}

ATTEMPTS: tuple[Attempt, ...] = (
    # --- the Kubernetes API, with the token of her own kubeconfig
    kube("reads pods", "GET", pods("{a}"), control=True),
    kube("reads secrets", "GET", f"{IN_A}/secrets", control=True),
    kube("reads a secret", "GET", f"{IN_A}/secrets/{{thing}}", control=True),
    kube("reads a config map", "GET", f"{IN_A}/configmaps/{{thing}}", control=True),
    kube("watches secrets", "GET", f"{IN_A}/secrets?watch=true&timeoutSeconds=1", control=True),
    kube("reads all secrets of the cluster", "GET", "/api/v1/secrets"),
    kube("reads events", "GET", f"{IN_A}/events", control=True),
    kube("leaves her namespace by dots", "GET", "/api/v1/namespaces/{b}/../{a}/secrets", refused=(301, 307, *HIDDEN)),
    kube("leaves it by encoded dots", "GET", "/api/v1/namespaces/{b}%2f..%2f{a}/secrets", refused=(400, *HIDDEN)),
    kube("makes a pod", "POST", pods("{a}") + DRY, a_pod(serviceAccountName="default"), control=True),
    kube("makes a job", "POST", f"/apis/batch/v1/namespaces/{{a}}/jobs{DRY}", {"metadata": {"name": "m"}} | JOB, control=True),
    kube("deletes a job", "DELETE", f"/apis/batch/v1/namespaces/{{a}}/jobs/{{thing}}{DRY}", control=True),
    kube("starts her job", "PATCH", f"/apis/batch/v1/namespaces/{{a}}/jobs/{{thing}}{DRY}", {"spec": {"suspend": False}}, control=True),
    kube("deletes all jobs", "DELETE", f"/apis/batch/v1/namespaces/{{a}}/jobs{DRY}", control=True),
    kube("runs a command in a pod", "POST", pods("{a}") + "/x/exec?command=id&stdout=true", refused=NO),
    kube("reads a pod's output", "GET", pods("{a}") + "/x/log", refused=NO),
    kube("connects to a pod", "POST", pods("{a}") + "/x/portforward?ports=80", refused=NO),
    kube("evicts a pod", "POST", pods("{a}") + "/x/eviction", {"metadata": {"name": "x", "namespace": "{a}"}}),
    # --- volumes
    kube("reads a volume", "GET", f"{IN_A}/persistentvolumeclaims/{{thing}}", control=True),
    kube("deletes a volume", "DELETE", f"{IN_A}/persistentvolumeclaims/{{thing}}{DRY}", control=True),
    kube("lists the disks behind volumes", "GET", "/api/v1/persistentvolumes"),
    kube("claims a disk that is Ada's", "PATCH", "/api/v1/persistentvolumes/x", {"spec": {"claimRef": None}}),
    server("lists volumes", "GET", "/api/v1/volumes?namespace={a}", refused=(200, *HIDDEN)),
    server("deletes a volume over REST", "DELETE", "/api/v1/volumes/{a}/{thing}"),
    # --- who she is
    kube("acts as Ada's account", "GET", f"{IN_A}/secrets", headers={"Impersonate-User": "{ada_user}"}),
    kube("acts as Ada by name", "GET", f"{IN_A}/secrets", headers={"Impersonate-User": "{ada}"}),
    kube("acts as a master", "GET", f"{IN_A}/secrets", headers={"Impersonate-User": "x", "Impersonate-Group": "system:masters"}),
    kube("acts as the operator", "GET", f"{IN_A}/secrets", headers={"Impersonate-User": "system:serviceaccount:moorage-system:moorage-operator"}),
    kube("names herself by a proxy's headers", "GET", f"{IN_A}/secrets", by="none", headers={"X-Remote-User": "{ada_user}", "X-Remote-Group": "system:masters"}),
    kube("takes a token of Ada's account", "POST", f"{PEOPLE}/serviceaccounts/{{ada_account}}/token", {"spec": {}}),
    kube("takes a token of a tenant's account", "POST", f"{IN_A}/serviceaccounts/default/token", {"spec": {}}),
    kube("reads passwords", "GET", f"{PEOPLE}/secrets"),
    kube("reads Ada's password", "GET", f"{PEOPLE}/secrets/{{ada_account}}-password"),
    kube("shuts Ada's account", "PATCH", f"{PEOPLE}/serviceaccounts/{{ada_account}}", {"metadata": {"annotations": {"moorage.dev/disabled": "x"}}}),
    kube("calls herself Ada", "PATCH", f"{PEOPLE}/serviceaccounts/{{mallory_account}}", {"metadata": {"annotations": {"moorage.dev/user": "{ada}"}}}),
    kube("joins Ada's group", "PATCH", f"{PEOPLE}/serviceaccounts/{{mallory_account}}", {"metadata": {"annotations": {"moorage.dev/groups": "[\"{a}\"]"}}}),
    # --- rights
    kube("lets herself in", "POST", f"/apis/{RBAC}/v1/namespaces/{{a}}/rolebindings{DRY}", binding("moorage:tenant-member")),
    kube("makes herself cluster admin", "POST", f"/apis/{RBAC}/v1/clusterrolebindings{DRY}", binding("cluster-admin")),
    kube("makes herself cluster admin at home", "POST", f"/apis/{RBAC}/v1/namespaces/{{b}}/rolebindings{DRY}", binding("cluster-admin")),
    kube("writes herself a role with more", "POST", f"/apis/{RBAC}/v1/namespaces/{{b}}/roles{DRY}", {"metadata": {"name": "m"}, "rules": [{"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}]}),
    # --- the tenants themselves
    kube("reads the tenant", "GET", f"{OURS}/tenants/{{a}}"),
    kube("joins the tenant", "PATCH", f"{OURS}/tenants/{{a}}{DRY}", {"spec": {"admins": {"people": ["{mallory}"]}}}),
    kube("makes a tenant of its namespace", "POST", f"{OURS}/tenants{DRY}", {"metadata": {"name": "a0"}, "spec": {"namespace": "{a}"}}),
    kube("unguards its namespace", "PATCH", f"{IN_A}{DRY}", {"metadata": {"labels": {"moorage.dev/guard": None}}}),
    kube("unguards her own namespace", "PATCH", f"{IN_B}{DRY}", {"metadata": {"labels": {"moorage.dev/guard": None}}}),
    kube("takes its quota away", "DELETE", f"{IN_A}/resourcequotas/moorage-tenant{DRY}"),
    kube("raises her own quota", "PATCH", f"{IN_B}/resourcequotas/moorage-tenant{DRY}", {"spec": {"hard": {"pods": "9999"}}}),
    kube("opens its network", "DELETE", f"/apis/networking.k8s.io/v1/namespaces/{{a}}/networkpolicies/moorage-tenant{DRY}"),
    # --- nodes and hosts
    kube("takes a node's taint away", "PATCH", f"/api/v1/nodes/{{node}}{DRY}", {"spec": {"taints": None}}),
    kube("tolerates its nodes' taint", "POST", pods("{b}") + DRY, a_pod(tolerations=[{"key": "moorage.dev/tenant", "value": "{a}"}]), refused=INVALID),
    kube("tolerates everything", "POST", pods("{b}") + DRY, a_pod(tolerations=[{"operator": "Exists"}]), refused=INVALID),
    kube("puts a pod on its node", "POST", pods("{b}") + DRY, a_pod(nodeName="{node}"), refused=INVALID),
    kube("takes its host", "POST", f"/apis/networking.k8s.io/v1/namespaces/{{b}}/ingresses{DRY}", an_ingress("{a}.example.org"), refused=INVALID),
    kube("takes a host below its", "POST", f"/apis/networking.k8s.io/v1/namespaces/{{b}}/ingresses{DRY}", an_ingress("*.x.{a}.example.org"), refused=INVALID),
    kube("takes every host", "POST", f"/apis/networking.k8s.io/v1/namespaces/{{b}}/ingresses{DRY}", an_ingress(""), refused=INVALID),
    # --- hosts of the platform, by which browsers bring cookies and codes
    kube("takes a workspace's host", "POST", INGRESSES, an_ingress(LAB_HOST), refused=INVALID),
    kube("takes its sign-in path", "POST", INGRESSES, an_ingress(LAB_HOST, "/.moorage"), refused=INVALID),
    kube("takes it in capitals", "POST", INGRESSES, an_ingress("THING--{a}.{apps}"), refused=INVALID),
    kube("takes it with a dot behind", "POST", INGRESSES, an_ingress(LAB_HOST + "."), refused=INVALID),
    kube("takes it in other letters", "POST", INGRESSES, an_ingress("thing--{a}\uff0e{apps}"), refused=INVALID),
    kube("takes a host that is yet to come", "POST", INGRESSES, an_ingress("next--{a}.{apps}"), refused=INVALID),
    kube("takes a host below it", "POST", INGRESSES, an_ingress(f"x.{LAB_HOST}"), refused=INVALID),
    kube("takes all workspaces' hosts", "POST", INGRESSES, an_ingress("*.{apps}"), refused=INVALID),
    kube("takes the domain of workspaces", "POST", INGRESSES, an_ingress("{apps}"), refused=INVALID),
    kube("takes the platform's own host", "POST", INGRESSES, an_ingress("{page}", "/login"), refused=INVALID),
    kube("takes a certificate for it", "POST", INGRESSES, an_ingress("own.example.net", tls=[{"hosts": [LAB_HOST], "secretName": "x"}]), refused=INVALID),
    kube("takes what no rule names", "POST", INGRESSES, {"metadata": {"name": "mallory"}, "spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}}, refused=INVALID),
    kube("changes her Ingress into it", "PATCH", f"{INGRESS_OF_HERS}{DRY}", {"spec": an_ingress(LAB_HOST)["spec"]}, refused=INVALID),
    kube("adds it by an alias", "PATCH", f"{INGRESS_OF_HERS}{DRY}", {"metadata": {"annotations": {"nginx.ingress.kubernetes.io/server-alias": LAB_HOST}}}, refused=INVALID),
    kube("writes into everybody's configuration", "POST", INGRESSES, annotated(configuration_snippet="return 200;"), refused=INVALID),
    kube("writes a server into it", "POST", INGRESSES, annotated(server_snippet="location /x {}"), refused=INVALID),
    kube("has the controller read a Secret", "POST", INGRESSES, annotated(auth_secret="{a}/thing"), refused=INVALID),
    kube("has the controller ask elsewhere", "POST", INGRESSES, annotated(auth_url="http://x#;}"), refused=INVALID),
    kube("sends people elsewhere", "POST", INGRESSES, annotated(permanent_redirect="https://evil.example"), refused=INVALID),
    kube("smuggles a line into a value", "POST", INGRESSES, annotated(proxy_body_size="1m;}\nserver {"), refused=INVALID),
    kube("smuggles a line into a path", "POST", INGRESSES, an_ingress("own.example.net", "/x {}"), refused=INVALID),
    kube("has the host's name lead to her", "POST", f"{IN_B}/services{DRY}", {"metadata": {"name": "m", "annotations": {"external-dns.alpha.kubernetes.io/hostname": LAB_HOST}}, "spec": {"ports": [{"port": 80}]}}, refused=INVALID),
    kube("takes an address of others", "POST", f"{IN_B}/services{DRY}", a_service(externalIPs=["10.96.0.10"]), refused=INVALID),
    kube("leads past NetworkPolicies", "POST", f"{IN_B}/services{DRY}", a_service(type="ExternalName", externalName="thing.{a}.svc.cluster.local"), refused=INVALID),
    # --- whose turn it is
    kube("takes anybody's place", "POST", pods("{b}") + DRY, a_pod(priorityClassName="system-node-critical"), refused=INVALID),
    kube("takes the control plane's class", "POST", pods("{b}") + DRY, a_pod(priorityClassName="system-cluster-critical"), refused=INVALID),
    kube("names a priority by number", "POST", pods("{b}") + DRY, a_pod(priority=2000001000), refused=INVALID),
    kube("says that she may preempt", "POST", pods("{b}") + DRY, a_pod(preemptionPolicy="PreemptLowerPriority"), refused=INVALID),
    kube("takes guests' class", "POST", pods("{b}") + DRY, a_pod(priorityClassName="moorage-guest"), refused=INVALID),
    kube("calls a pod a reservation", "POST", pods("{b}") + DRY, a_pod(priorityClassName="moorage-reservation"), refused=INVALID),
    kube("takes a class that is not her team's", "POST", pods("{b}") + DRY, a_pod(priorityClassName="{urgent}"), refused=INVALID),
    kube("takes it by a deployment", "POST", f"/apis/apps/v1/namespaces/{{b}}/deployments{DRY}", templated(priorityClassName="system-node-critical"), refused=INVALID),
    kube("takes it by a stateful set", "POST", f"/apis/apps/v1/namespaces/{{b}}/statefulsets{DRY}", templated(priorityClassName="{urgent}"), refused=INVALID),
    kube("takes it by a job", "POST", f"/apis/batch/v1/namespaces/{{b}}/jobs{DRY}", {"metadata": {"name": "m"}, "spec": {"template": {"spec": POD | {"priorityClassName": "system-node-critical"}}}}, refused=INVALID),
    kube("takes it by a schedule", "POST", f"/apis/batch/v1/namespaces/{{b}}/cronjobs{DRY}", {"metadata": {"name": "m"}, "spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": POD | {"priorityClassName": "system-node-critical"}}}}}}, refused=INVALID),
    kube("makes a class", "POST", f"/apis/scheduling.k8s.io/v1/priorityclasses{DRY}", {"metadata": {"name": "mallory"}, "value": 1000000000}),
    kube("has her tenant list a class", "PATCH", f"{OURS}/tenants/{{b}}{DRY}", {"spec": {"priorityClasses": ["{urgent}"]}}),
    # --- the platform
    kube("reads the platform's secrets", "GET", "/api/v1/namespaces/moorage-system/secrets"),
    kube("sends everybody to another server", "PATCH", f"/api/v1/namespaces/moorage-system/configmaps/moorage{DRY}", {"data": {"serverUrl": "http://evil.example"}}),
    kube("takes the webhook away", "DELETE", f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/moorage{DRY}"),
    # --- the queue of maps
    kube("reads map jobs", "GET", f"{OURS}/namespaces/{{a}}/mapjobs", control=True),
    kube("makes a map job", "POST", f"{OURS}/namespaces/{{a}}/mapjobs{DRY}", {"metadata": {"name": "m"}, "spec": {}}),
    server("looks at the team", "GET", "/api/v1/tenants/{a}", control=True),
    server("adds herself to the team", "POST", "/api/v1/tenants/{a}/members", {"role": "admin", "people": ["mallory"]}),
    server("removes its admin", "POST", "/api/v1/tenants/{a}/members/remove", {"role": "admin", "people": ["{ada}"]}),
    server("raises her own quota by a change of members", "POST", "/api/v1/tenants/{b}/members", {"people": ["x"], "quota": {}}, refused=(422,)),
    server("reads a map", "GET", "/api/v1/maps/{a}/{map}", control=True),
    server("reads its items", "GET", "/api/v1/maps/{a}/{map}/items", control=True),
    server("reads its results", "GET", "/api/v1/maps/{a}/{map}/results", control=True),
    server("reads its output", "GET", "/api/v1/maps/{a}/{map}/output"),
    server("takes its workers' token", "POST", "/api/v1/maps/{a}/{map}/token"),
    server("cancels it", "PATCH", "/api/v1/maps/{a}/{map}", {"state": "cancelled"}),
    server("puts items in", "POST", "/api/v1/maps/{a}/{map}/items", {"key": "m", "value": 1}),
    server("deletes it", "DELETE", "/api/v1/maps/{a}/{map}"),
    server("makes a map there", "POST", "/api/v1/maps/{a}", {"name": "m", "request": "m"}),
    server("leaves her namespace by encoded dots, at the server", "GET", "/api/v1/maps/{b}%2f..%2f{a}/{map}", refused=(400, *HIDDEN)),
    server("sets everybody's limits", "PUT", "/api/v1/limits/mysql", {"capacity": 0}),
    server("works for it without its token", "POST", "/api/v1/work", {}, by="forged_session", refused=(400, 401, 403)),
    # --- what the server tells everybody is no more than that
    server("has a job explained", "GET", "/api/v1/explain/{a}/{thing}", refused=(200, 404)),
    server("learns what its runs get", "GET", "/api/v1/gpus?namespace={a}", refused=(200,)),
    server("lists everybody's runs", "GET", "/api/v1/jobs", refused=(200,)),
    # --- runs; Ada has one, called "train"
    server("makes a job over REST", "POST", "/api/v1/jobs", A_RUN | {"namespace": "{a}", "dryRun": True}, control=True),
    server("looks at one", "GET", "/api/v1/jobs/{a}/train", refused=(200,)),
    server("reads its logs over REST", "GET", "/api/v1/jobs/{a}/train/logs", control=True),
    server("follows its logs", "GET", "/api/v1/jobs/{a}/train/logs?follow=true"),
    server("cancels one", "DELETE", "/api/v1/jobs/{a}/train?delete=false", control=True),
    server("deletes one", "DELETE", "/api/v1/jobs/{a}/train?delete=true"),
    # --- workspaces, datasets, containers; Ada has one of each, called "thing"
    kube("reads workspaces", "GET", f"{OURS}/namespaces/{{a}}/workspaces", control=True),
    kube("lets herself into a workspace", "PATCH", f"{OURS}/namespaces/{{a}}/workspaces/{{thing}}{DRY}", {"spec": {"access": "token"}}, control=True),
    kube("reads datasets", "GET", f"{OURS}/namespaces/{{a}}/datasets", control=True),
    kube("shares a dataset with herself", "PATCH", f"{OURS}/namespaces/{{a}}/datasets/{{thing}}{DRY}", {"spec": {"readers": ["{b}"]}}, control=True),
    kube("books its machines away", "POST", f"{OURS}/namespaces/{{a}}/reservations{DRY}", {"metadata": {"name": "m"}, "spec": {}}),
    server("reads a workspace", "GET", "/api/v1/workspaces/{a}/{thing}", control=True),
    server("makes a workspace there", "POST", "/api/v1/workspaces", {"name": "m", "namespace": "{a}", "spec": A_LAB, "dryRun": True}, control=True),
    server("opens a workspace", "POST", "/api/v1/workspaces/{a}/{thing}/open", {}),
    server("starts a workspace", "POST", "/api/v1/workspaces/{a}/{thing}/start", {}),
    server("stops a workspace", "POST", "/api/v1/workspaces/{a}/{thing}/stop", {}, control=True),
    server("deletes a workspace", "DELETE", "/api/v1/workspaces/{a}/{thing}"),
    server("stops it by the page's form", "POST", "/workspaces/{a}/{thing}/stop", headers={"Sec-Fetch-Site": "same-origin"}),
    server("enters by its host", "GET", "/", headers={"Host": "thing--{a}.workspace.localhost"}, refused=(302, 303, 307, 400, *HIDDEN)),
    server("reads a dataset", "GET", "/api/v1/datasets/{a}/{thing}", control=True),
    server("shares a dataset over REST", "PATCH", "/api/v1/datasets/{a}/{thing}", {"readers": ["{b}"]}),
    server("deletes a dataset", "DELETE", "/api/v1/datasets/{a}/{thing}"),
    server("lists containers", "GET", "/api/v1/containers?all=true", headers=AS_IF_IN_A),
    server("reads a container", "GET", "/api/v1/containers/{thing}?namespace={a}", control=True),
    server("reads it without saying where", "GET", "/api/v1/containers/{thing}"),
    server("reads its logs", "GET", "/api/v1/containers/{thing}/logs?stdout=1&namespace={a}"),
    server("starts a container", "POST", "/api/v1/containers/{thing}/start", headers=AS_IF_IN_A),
    server("kills a container", "POST", "/v1.45/containers/{thing}/kill", headers=AS_IF_IN_A),
    server("runs a command in a container", "POST", "/v1.45/containers/{thing}/exec", {"Cmd": ["id"], "AttachStdout": True}, headers=AS_IF_IN_A),
    server("makes a container there", "POST", "/api/v1/containers?name=m", {"Image": "x", "Labels": HOST_ENV, "Cmd": ["sleep", "600"]}, headers=AS_IF_IN_A),
    server("removes a container", "DELETE", "/api/v1/containers/{thing}", headers=AS_IF_IN_A),
    # --- people, over REST
    server("lists accounts", "GET", "/api/v1/users"),
    server("sets Ada's password", "PATCH", "/api/v1/users/{ada}", {"password": "mallory was here"}),
    server("shuts Ada's account over REST", "PATCH", "/api/v1/users/{ada}", {"disabled": True}),
    server("makes an account", "POST", "/api/v1/users", {"name": "m", "password": "mallory was here"}),
    server("reads the audit log", "GET", "/api/v1/audit"),
    server("ends Ada's session", "DELETE", "/api/v1/login/sessions/{ada_session}"),
    # --- tokens that are none
    server("makes up a session", "GET", "/api/v1/gpus", by="forged_session"),
    server("comes with a session's number", "GET", "/api/v1/gpus", by="session_number"),
    server("comes with an ended session", "GET", "/api/v1/gpus", by="ended_session"),
    server("comes with an ended session's cluster token", "GET", "/api/v1/gpus", by="ended_kube"),
    server("signs nothing", "GET", "/api/v1/gpus", by="unsigned"),
    server("writes another name into her token", "GET", "/api/v1/gpus", by="rewritten"),
    server("puts a token into the address", "GET", "/?token={mallory_session}", by="none"),
    server("puts a session into the page's cookie", "GET", "/api/v1/gpus", by="none", headers={"Cookie": "moorage_session={mallory_session}"}),
    server("names herself by a header", "GET", "/api/v1/gpus", by="none", headers={"X-Forwarded-User": "{ada}", "X-Remote-User": "{ada}"}),
    kube("comes with an ended session's token", "GET", f"{IN_B}/pods", by="ended_kube"),
    kube("signs nothing, to the cluster", "GET", f"{IN_B}/pods", by="unsigned"),
    kube("writes another name into her token, to the cluster", "GET", f"{IN_A}/secrets", by="rewritten"),
    kube("comes to the cluster with a session", "GET", f"{IN_B}/pods", by="mallory_server"),
    server("uses a code that nobody gave", "POST", "/api/v1/login/exchange", {"code": "x", "verifier": "y"}, by="none", refused=(400,)),
    # --- Ada's own browser, on mallory's page
    server("has Ada's browser log out", "POST", "/logout", by="none", headers={"Cookie": "moorage_login={ada_cookie}", "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}),
    server("has it grant a session", "POST", "/login/cli", by="none", headers={"Cookie": "moorage_login={ada_cookie}", "Origin": "null"}),
    server("has it take a token", "POST", "/api/v1/login/token", {}, by="none", headers={"Cookie": "moorage_login={ada_cookie}"}),
    server("has it log in as mallory", "POST", "/login", by="none", headers={"Origin": "http://evil.example"}),
    server("comes by another name of the server", "GET", "/api/v1/gpus", headers={"Host": "evil.example"}, refused=(400,)),
)  # fmt: skip


@dataclass
class Scene:
    kube: str
    server: str
    names: dict[str, str]
    tokens: dict[str, str]

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, text in self.names.items():
                value = value.replace("{" + name + "}", text)
            return value
        if isinstance(value, dict):
            return {key: self.fill(one) for key, one in value.items()}
        return [self.fill(one) for one in value] if isinstance(value, list) else value

    async def send(self, attempt: Attempt, by: str = "") -> tuple[int, str]:
        from yarl import URL

        headers = {key: self.fill(one) for key, one in attempt.headers.items()} if not by else {}
        token = self.tokens[by or attempt.by or f"mallory_{attempt.to}"]
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if attempt.body is not None:
            data = json.dumps(self.fill(attempt.body))
            headers["Content-Type"] = attempt.content_type or "application/json"
        base = self.kube if attempt.to == "kube" else self.server
        url = URL(base + self.fill(attempt.path), encoded=True)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
            http.request(
                attempt.method, url, headers=headers, data=data, ssl=False, allow_redirects=False
            ) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    cluster: Cluster = request.getfixturevalue("_session_cluster")
    if reason := cluster.lacks({"api"}):
        pytest.skip(reason)
    unique = "t" + secrets.token_hex(4)
    try:
        yield asyncio.run(_set_up(cluster, unique))
    finally:
        asyncio.run(_tear_down(cluster, unique))


async def _set_up(cluster: Cluster, unique: str) -> Scene:
    names = {
        "a": f"{unique}-a",
        "b": f"{unique}-b",
        "thing": "thing",
        "map": "squares",
        "node": f"{unique}-cpu",
        "urgent": f"{unique}-urgent",
    }
    for who in ("ada", "mallory"):
        names[who] = f"{who}-{unique}"
        names[f"{who}_account"] = account_name(names[who])
        names[f"{who}_user"] = account_user(names[who])
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        base = (await server_url(api)).rstrip("/")
        names |= await _hosts(api)
        urgent = {"metadata": {"name": names["urgent"]}, "value": 1000}
        await api.create(PRIORITYCLASSES, urgent)
        await api.create(NODES, {"metadata": {"name": names["node"], "labels": {"pool": unique}}, "spec": {}})
        for tenant, who in (("a", "ada"), ("b", "mallory")):
            name = names[tenant]
            await people.create_account(api, names[who], [name], LOCAL)
            await people.set_password(api, names[who], PASSWORD)
            spec: Any = {
                "namespace": name,
                "admins": {"people": [names[who]]},
                "quota": {"pods": "50"},
            }
            if tenant == "a":
                spec |= {
                    "ingress": {"domain": f"{name}.example.org"},
                    "cpuNodes": {"selector": {"pool": unique}},
                    "defaults": {"image": SECRET},
                }
            kind = {"apiVersion": TENANTS.api_version, "kind": TENANTS.kind}
            await api.create(TENANTS, kind | {"metadata": {"name": name}, "spec": spec})
        scene = Scene(api.connection.server, base, names, {"none": ""})
        for who in ("ada", "mallory"):
            session, number = await _log_in(base, names[who])
            scene.tokens[f"{who}_server"] = session
            scene.tokens[f"{who}_kube"] = await _cluster_token(base, session)
            names[f"{who}_session"] = number if who == "ada" else session
        names["ada_cookie"] = scene.tokens["ada_server"]
        ada, mallory = (api.with_token(scene.tokens[f"{who}_kube"]) for who in ("ada", "mallory"))
        for tenant, token in (("a", "ada_kube"), ("b", "mallory_kube")):
            await until(f"rights of {token}", partial(_may, api, scene.tokens[token], names[tenant]))
        with contextlib.suppress(AlreadyExists):  # a control plane without controllers has none
            await api.create(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, names["a"])
        own = an_ingress("own.example.net")
        await mallory.create(KUBE_INGRESSES, own | {"metadata": {"name": "own"}}, names["b"])
        await ada.create(SECRETS, {"metadata": {"name": "thing"}, "stringData": {"x": SECRET}}, names["a"])
        await ada.create(CONFIGMAPS, {"metadata": {"name": "thing"}, "data": {"x": SECRET}}, names["a"])
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
        notes = {"annotations": {"note": SECRET}}
        await ada.create(PVCS, {"metadata": {"name": "thing"} | notes, "spec": claim}, names["a"])
        job: Any = {"metadata": {"name": "thing"} | notes} | JOB
        job["spec"]["template"]["metadata"] = notes
        await ada.create(JOBS, job, names["a"])
        lab = A_LAB | {"env": [{"name": "X", "value": SECRET}]}
        kind = {"apiVersion": WORKSPACES.api_version, "kind": WORKSPACES.kind}
        await ada.create(WORKSPACES, kind | {"metadata": {"name": "thing"} | notes, "spec": lab}, names["a"])
        await _post(scene, "/api/v1/datasets", {"name": "thing", "namespace": names["a"], "spec": A_DATASET})
        await _post(
            scene, "/api/v1/jobs", A_RUN | {"name": "train", "namespace": names["a"], "env": {"X": SECRET}}
        )
        size = {"Memory": 1 << 26, "NanoCpus": 10**9}
        box = {
            "Image": "x",
            "Env": [f"X={SECRET}"],
            "HostConfig": size,
            "Labels": HOST_ENV,
            "Cmd": ["sleep", "600"],
        }
        await _post(scene, f"/api/v1/containers?name=thing&namespace={names['a']}", box)
        await _make_map(scene)
        await _bad_tokens(scene)
        return scene


async def _hosts(api: KubeClient) -> dict[str, str]:
    """The domain of workspaces, made one where there is none, and the host of the platform's page."""
    info = (await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE))["data"]
    if not info.get("workspaceUrl"):
        info["workspaceUrl"] = "https://*.apps.example.org"
        await api.patch(CONFIGMAPS, INFO_CONFIGMAP, {"data": info}, SYSTEM_NAMESPACE)
    page = info.get("publicUrl") or info["serverUrl"]
    return {"apps": parse_platform(info).domain, "page": str(urlsplit(page).hostname)}


async def _tear_down(cluster: Cluster, unique: str) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        for part in ("a", "b"):
            for resource in (TENANTS, NAMESPACES):
                with contextlib.suppress(NotFound):
                    await api.delete(resource, f"{unique}-{part}")
        for resource, name in ((NODES, f"{unique}-cpu"), (PRIORITYCLASSES, f"{unique}-urgent")):
            with contextlib.suppress(NotFound):
                await api.delete(resource, name)
        for who in ("ada", "mallory"):
            with contextlib.suppress(NotFound):
                await people.delete_account(api, f"{who}-{unique}")


async def _log_in(base: str, name: str) -> tuple[str, str]:
    body = {"username": name, "password": PASSWORD, "client": "test"}
    async with aiohttp.ClientSession() as http, http.post(f"{base}/api/v1/login", json=body) as answer:
        assert answer.status == 201, await answer.text()
        told = await answer.json()
        return told["token"], told["session"]


async def _cluster_token(base: str, session: str) -> str:
    headers = {"Authorization": f"Bearer {session}"}
    url = f"{base}/api/v1/login/token"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json={}) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["token"])


async def _post(scene: Scene, path: str, body: Any) -> None:
    """As Ada."""
    headers = {"Authorization": f"Bearer {scene.tokens['ada_server']}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(scene.server + path, json=body) as answer:
        assert answer.status == 201, await answer.text()


async def _make_map(scene: Scene) -> None:
    headers = {"Authorization": f"Bearer {scene.tokens['ada_server']}"}
    url = f"{scene.server}/api/v1/maps/{scene.names['a']}"
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(url, json={"name": "squares", "request": "r"}) as answer:
            assert answer.status in (200, 201), await answer.text()
        line = json.dumps({"key": "k", "value": base64.b64encode(SECRET.encode()).decode()})
        async with http.post(f"{url}/squares/items", data=line) as answer:
            assert answer.status < 500, await answer.text()


async def _bad_tokens(scene: Scene) -> None:
    """Tokens that were good once, or never."""
    ended, number = await _log_in(scene.server, scene.names["mallory"])
    of_ended = await _cluster_token(scene.server, ended)
    headers = {"Authorization": f"Bearer {ended}"}
    url = f"{scene.server}/api/v1/login"
    async with aiohttp.ClientSession(headers=headers) as http, http.delete(url) as answer:
        assert answer.status == 204
    head, body, signature = scene.tokens["mallory_kube"].split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["sub"] = scene.names["ada_user"]
    claims["kubernetes.io"]["serviceaccount"]["name"] = scene.names["ada_account"]
    other = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    scene.tokens |= {
        "forged_session": "mrs_" + secrets.token_urlsafe(32),
        "session_number": "mrs_" + number,
        "ended_session": ended,
        "ended_kube": of_ended,
        "rewritten": f"{head}.{other}.{signature}",
        "unsigned": f"{none}.{body}.",
    }
    probe = kube("", "GET", f"{IN_B}/pods", by="ended_kube")

    async def is_over() -> bool:  # a real API server believes a token for 10 s more
        return (await scene.send(probe))[0] == 401

    await until("the end of the token", is_over)


async def _may(api: KubeClient, token: str, namespace: str) -> bool:
    from moorage_kube.errors import ApiError

    try:
        await api.with_token(token).list(SECRETS, namespace)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda one: one.id.replace(" ", "-"))
async def test_one_tenant_does_not_reach_the_others_things(scene: Scene, attempt: Attempt) -> None:
    status, body = await scene.send(attempt)
    assert status in attempt.refused, f"HTTP {status}: {body[:500]}"
    assert SECRET not in body
    assert base64.b64encode(SECRET.encode()).decode() not in body
    if attempt.control:
        status, body = await scene.send(attempt, by=f"ada_{attempt.to}")
        assert status < 300, f"Ada herself is refused: HTTP {status}: {body[:500]}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(INGRESSES, annotated(proxy_body_size="0", rewrite_target="/$1"), id="an Ingress"),
        pytest.param(f"{IN_B}/services{DRY}", a_service(selector={"app": "m"}), id="a Service"),
        pytest.param(pods("{b}") + DRY, a_pod(priorityClassName="moorage-default"), id="a pod"),
        pytest.param(f"/apis/apps/v1/namespaces/{{b}}/deployments{DRY}", templated(), id="a Deployment"),
    ],
)
async def test_what_is_her_own_goes_through(scene: Scene, path: str, body: Any) -> None:
    status, text = await scene.send(kube("", "POST", path, body))
    assert status == 201, text


def test_there_are_sixty_attempts_and_no_two_bear_one_name() -> None:
    assert len({one.id for one in ATTEMPTS}) == len(ATTEMPTS) >= 60


async def test_after_all_of_it_adas_things_are_as_they_were(scene: Scene) -> None:
    for plural in ("secrets", "configmaps", "persistentvolumeclaims"):
        status, body = await scene.send(kube("", "GET", f"{IN_A}/{plural}/thing"), by="ada_kube")
        assert status == 200
        assert SECRET in body or base64.b64encode(SECRET.encode()).decode() in body
    status, body = await scene.send(kube("", "GET", "/apis/batch/v1/namespaces/{a}/jobs/thing"), by="ada_kube")
    assert json.loads(body)["spec"]["suspend"] is True
    for path in (
        "maps/{a}/squares",
        "workspaces/{a}/thing",
        "datasets/{a}/thing",
        "jobs/{a}/train/logs",
        "containers/thing?namespace={a}",
    ):
        status, body = await scene.send(server("", "GET", f"/api/v1/{path}"), by="ada_server")
        assert status == 200, path
    assert json.loads(body)["State"]["Status"] == "created"
    status, body = await scene.send(server("", "GET", "/api/v1/datasets/{a}/thing"), by="ada_server")
    assert json.loads(body)["readers"] == []
    status, body = await scene.send(server("", "GET", "/api/v1/gpus?namespace={a}"), by="ada_server")
    assert json.loads(body)["tenant"]["spec"]["defaults"] == {"image": SECRET}
    status, body = await scene.send(server("", "GET", "/api/v1/login"), by="ada_server")
    assert json.loads(body)["name"] == scene.names["ada"]


async def test_a_session_is_its_persons_whatever_the_headers_say(scene: Scene) -> None:
    asked = server("", "GET", "/api/v1/login", headers={"Impersonate-User": "{ada}", "X-Forwarded-User": "{ada}"})
    status, body = await scene.send(asked)
    assert (status, json.loads(body)["name"]) == (200, scene.names["mallory"])

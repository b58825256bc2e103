"""Namespaces, and the ConfigMap with the address of the server for clients."""

from __future__ import annotations

from moorage.model.manifests.parts import PART_OF, RBAC, ROLEBINDINGS, ROLES, Rule, make_binding, make_object
from moorage.model.manifests.services import SERVER_SERVICE
from moorage.model.names import INFO_CONFIGMAP, POD_SECURITY, SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, Obj


def make_namespace() -> Obj:
    """Our own namespace, with the strictest Pod Security level."""
    labels = PART_OF | {POD_SECURITY: "restricted"}
    return make_object(NAMESPACES, SYSTEM_NAMESPACE, None, labels=labels)


def make_people_namespace() -> Obj:
    """The namespace of user accounts. No pods run in it."""
    labels = PART_OF | {POD_SECURITY: "restricted"}
    return make_object(NAMESPACES, PEOPLE_NAMESPACE, None, labels=labels)


def make_info(
    version: str,
    server_url: str = f"http://{SERVER_SERVICE}.{SYSTEM_NAMESPACE}.svc",
    *,
    public_url: str = "",
    kubernetes_url: str = "",
    kubernetes_ca: str = "",
    trusted_proxies: str = "",
    workspace_url: str = "",
    ingress_class: str = "",
    tls_secret: str = "",
) -> list[Obj]:
    """The ConfigMap by which clients find the server, and the right of all users to read it.

    `public_url`: the address of the server for users, several with commas between them; `kubernetes_url`: the
    address of the Kubernetes API for them, with the certificate `kubernetes_ca`; `trusted_proxies`: networks,
    as `10.0.0.0/8`; `workspace_url` (`https://*.apps.example.org`): the address of their workspaces, behind
    `ingress_class`. An administrator fills them in; see `moorage.model.info` and
    `moorage.model.workspace.parse_platform`.
    """
    reading = Rule(resources=("configmaps",), verbs=("get",), names=(INFO_CONFIGMAP,))
    data = {
        "serverUrl": server_url,
        "version": version,
        "publicUrl": public_url,
        "kubernetesUrl": kubernetes_url,
        "kubernetesCa": kubernetes_ca,
        "trustedProxies": trusted_proxies,
        "workspaceUrl": workspace_url,
        "ingressClass": ingress_class,
        "ingressTlsSecret": tls_secret,
    }
    data = {key: text for key, text in data.items() if text}  # an absent key is the admin's: no apply resets it
    everybody = {"kind": "Group", "apiGroup": RBAC, "name": "system:authenticated"}
    return [
        make_object(CONFIGMAPS, INFO_CONFIGMAP, data=data),
        make_object(ROLES, "moorage-info", rules=[reading.to_obj()]),
        make_binding(ROLEBINDINGS, "moorage-info", "Role", "moorage-info", everybody),
    ]

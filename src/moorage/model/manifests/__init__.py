"""What a cluster needs to run Moorage's services: pure builders of plain objects.

`moor manifests` and `moor install` put them together with the CustomResourceDefinitions, the registration of the
webhook and the scheduler configuration. Each service has an account of its own with only the verbs it uses.

Belongs here: objects of Kubernetes that we ship, a module per subject; `parts` holds what they share.
Does not belong here: values of an installation (`decide.install`), writing to a cluster (`actions.install`).
"""

from moorage.model.manifests.config import (
    make_info,
    make_namespace,
    make_people_namespace,
)
from moorage.model.manifests.deployments import IMAGE, USAGE_SIZE, make_deployment, make_service
from moorage.model.manifests.ingress import make_ingress
from moorage.model.manifests.machines import BUDGET_MIN, RESERVE_ROLE, make_machine_objects
from moorage.model.manifests.network import make_network_policies, make_server_address
from moorage.model.manifests.parts import (
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    HOSTNAME,
    LIST,
    NETWORKPOLICIES,
    PART_OF,
    RBAC,
    READ,
    ROLEBINDINGS,
    ROLES,
    USER_ID,
    WRITE,
    ZONE,
    Rule,
    Service,
    container_security,
    make_binding,
    make_object,
    pod_security,
    spread,
)
from moorage.model.manifests.rights import (
    LOCAL_ADMIN,
    TENANT_OBJECT,
    TENANT_ROLES,
    TENANT_RULES,
    make_admin_binding,
    make_kubelets_account,
    make_local_admin,
    make_rights,
    make_tenant_roles,
    make_workspace_roles,
)
from moorage.model.manifests.services import (
    ALL,
    EXTENDER,
    EXTENDER_SERVICE,
    OPERATOR,
    OPERATOR_LEASE,
    QUEUE_SECRET,
    SERVER,
    SERVER_SERVICE,
    USAGE_CLAIM,
    WEBHOOK,
    extender_url,
    host_names,
)

__all__ = [
    "ALL",
    "BUDGET_MIN",
    "CLUSTERROLEBINDINGS",
    "CLUSTERROLES",
    "EXTENDER",
    "EXTENDER_SERVICE",
    "HOSTNAME",
    "IMAGE",
    "LIST",
    "LOCAL_ADMIN",
    "NETWORKPOLICIES",
    "OPERATOR",
    "OPERATOR_LEASE",
    "PART_OF",
    "QUEUE_SECRET",
    "RBAC",
    "READ",
    "RESERVE_ROLE",
    "ROLEBINDINGS",
    "ROLES",
    "SERVER",
    "SERVER_SERVICE",
    "TENANT_OBJECT",
    "TENANT_ROLES",
    "TENANT_RULES",
    "USAGE_CLAIM",
    "USAGE_SIZE",
    "USER_ID",
    "WEBHOOK",
    "WRITE",
    "ZONE",
    "Rule",
    "Service",
    "container_security",
    "extender_url",
    "host_names",
    "make_admin_binding",
    "make_binding",
    "make_deployment",
    "make_info",
    "make_ingress",
    "make_kubelets_account",
    "make_local_admin",
    "make_machine_objects",
    "make_namespace",
    "make_network_policies",
    "make_object",
    "make_people_namespace",
    "make_rights",
    "make_server_address",
    "make_service",
    "make_tenant_roles",
    "make_workspace_roles",
    "pod_security",
    "spread",
]

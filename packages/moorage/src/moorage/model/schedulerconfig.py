"""The scheduler configurations to ship, so that our points decide where GPU pods go.

All of them share `kube_scheduler_configuration`. A second kube-scheduler in a pod takes
`second_scheduler_configuration`. The cluster's own takes `first_scheduler_configuration`. The operator keeps both
in the Secret SCHEDULER_SECRET, because the extender's token is part of them.
https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from moorage.model.names import SCHEDULER_LEASE, SCHEDULER_NAME, SYSTEM_NAMESPACE
from moorage_kube.resources import Obj

DEFAULT_SCHEDULER = "default-scheduler"  # the API server writes it into pods that name none
KUBEADM_KUBECONFIG = "/etc/kubernetes/scheduler.conf"
SECOND_KEY, FIRST_KEY = "scheduler.yaml", "first-scheduler.yaml"  # of the Secret SCHEDULER_SECRET
WEIGHT = 5
HTTP_TIMEOUT = "500ms"
LOCAL_HTTP_TIMEOUT = "5s"  # of a local cluster, where pods may keep the extender's processor busy
NODES_TO_SCORE_PERCENT = 10  # kube-scheduler's own share from 5,000 nodes on; at least 100 nodes
VERBS_PATH = "/scheduler"


def verbs_path(token: str = "") -> str:
    """The path of the scheduler's requests, below the extender's address.

    The token is part of the path: kube-scheduler's configuration has no field for a header sent to extenders.
    """
    return f"{VERBS_PATH}/{token}" if token else VERBS_PATH


def derived_token(secret: str, purpose: str = "scheduler") -> str:
    """A token for the path, derived from a secret that both sides hold. The secret cannot be computed from it."""
    return hashlib.sha256(f"{purpose} {secret}".encode()).hexdigest()[:48]


def kube_scheduler_configuration(
    url: str,
    *,
    token: str = "",
    weight: int = WEIGHT,
    gpu_profile: str | None = None,
    percentage: int = NODES_TO_SCORE_PERCENT,
    timeout: str = HTTP_TIMEOUT,
) -> Obj:
    """A KubeSchedulerConfiguration that calls our extender at `url` (scheme, host and port) with its `token`.

    kube-scheduler and the local cluster's scheduler both take it. Its choices:

    - `prioritizeVerb` only. kube-scheduler has counted free devices and matched labels itself before it asks, from
      a cache ahead of ours: `filter` would find nothing more and cost every pod a round trip. It is for schedulers
      that ignore the GPU resource, and explains why a node can never run the pod.
    - `weight` 5. A point of ours counts 10 x weight. For a pod that asks for GPUs and states no wishes one node
      gets points that nothing outvotes at any weight (`decide.winner`). For other pods a tenth of a node is 50,
      more than one pod changes the default scores (LeastAllocated and BalancedAllocation, 200 together), and
      larger weights would drown stated wishes: preferred affinity and spreading weigh up to 200. In a replay
      of a production trace without that one node, weight 1 was out-voted (22 of 44 eight-GPU pods rejected); from
      5 on it was 5, and more changed nothing.
    - `nodeCacheCapable`: names travel, not nodes. At 5,000 nodes that is 160 KB for 76 MB.
    - `ignorable` and `httpTimeout` 500 ms: without us pods are scheduled all the same, at most half a second late.
    - no `managedResources`: with them pods that ask for no GPU would skip us, and it is our points that keep those
      off GPU nodes; and every vendor's resource would have to be named.

    - `percentageOfNodesToScore` 10. kube-scheduler looks for that share of the nodes among those with room, and
      skips full ones; by default it wants 42 % at 1,000 nodes, which on packed nodes means all of them, for
      every pod. With 10 the replay of the trace fills no worse (99.7 % against 99.6, none more refused), and a pod
      costs less than without us. Wishes are judged among fewer nodes, as on any large cluster: 0 is
      kube-scheduler's own choice by size, 100 every node.

    With `gpu_profile` a second scheduler profile of that name is added, in which the default resource scores are
    off, for pods whose `spec.schedulerName` says so. Extenders serve all profiles.
    """
    # in the GPU profile our points are not outvoted by the scores of resources
    profiles: Sequence[Obj] = ({"schedulerName": DEFAULT_SCHEDULER},)
    if gpu_profile is not None:
        off = [{"name": "NodeResourcesFit"}, {"name": "NodeResourcesBalancedAllocation"}]
        profiles = (*profiles, {"schedulerName": gpu_profile, "plugins": {"score": {"disabled": off}}})
    # the docstring gives the reason of each value
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": percentage,
        "profiles": list(profiles),
        "extenders": [
            {
                "urlPrefix": url.rstrip("/") + verbs_path(token),
                "prioritizeVerb": "prioritize",
                "weight": weight,
                "enableHTTPS": url.startswith("https://"),
                "httpTimeout": timeout,
                "nodeCacheCapable": True,
                "ignorable": True,
            }
        ],
    }


def second_scheduler_configuration(url: str, *, token: str, percentage: int = NODES_TO_SCORE_PERCENT) -> Obj:
    """For a kube-scheduler in a pod next to the cluster's own: it has another name and another lease.

    Without `clientConnection` it asks the API server with the rights of its pod. Both would otherwise wait for one
    lease, `kube-system/kube-scheduler`, and only the first would schedule.
    """
    shared = kube_scheduler_configuration(url, token=token, percentage=percentage)
    return shared | {
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",
            "resourceName": SCHEDULER_LEASE,
            "resourceNamespace": SYSTEM_NAMESPACE,
        },
    }


def local_scheduler_configuration(url: str, *, token: str = "") -> Obj:
    """The configuration of a local cluster's scheduler.

    It waits longer for an extender that lacks processor time.
    """
    return kube_scheduler_configuration(url, token=token, timeout=LOCAL_HTTP_TIMEOUT)


def first_scheduler_configuration(
    url: str,
    *,
    token: str,
    kubeconfig: str = KUBEADM_KUBECONFIG,
    percentage: int = NODES_TO_SCORE_PERCENT,
) -> Obj:
    """The configuration of the cluster's own kube-scheduler, which schedules all pods without another scheduler.

    `kubeconfig`: the path of its credentials; the default is kubeadm's. With `--config`, kube-scheduler ignores
    `--kubeconfig` and stops without `clientConnection`. `url` needs an IP address: hosts cannot resolve Services.
    """
    shared = kube_scheduler_configuration(url, token=token, percentage=percentage)
    return shared | {
        "clientConnection": {"kubeconfig": kubeconfig},
        "leaderElection": {"leaderElect": True},
    }


def scheduler_files(token: str, *, name_url: str, address_url: str, percentage: int) -> dict[str, bytes]:
    """The contents of the Secret SCHEDULER_SECRET. kube-scheduler reads JSON too, which is valid YAML.

    `name_url`: the extender's URL with the name of its Service, for pods; `address_url`: with its cluster IP,
    for hosts.
    """
    second = second_scheduler_configuration(name_url, token=token, percentage=percentage)
    first = first_scheduler_configuration(address_url, token=token, percentage=percentage)
    return {key: _text(config) for key, config in ((SECOND_KEY, second), (FIRST_KEY, first))}


def _text(config: Obj) -> bytes:
    return (json.dumps(config, indent=2) + "\n").encode()

"""The node agent: a kubelet for pods that run as processes of this machine.

    shim, podshim   standard library only: runs one pod, outlives the agent
    podfolder       the folder of one pod: decisions, the shim's report, whether processes live
    leftovers       processes that must not outlive their pod
    plan            pure: the observed state of one pod → its next steps
    status          pure: pod + shim's report → `v1.PodStatus`
    environment     pure: variables, field references, `$(VAR)`
    volumes         volumes → folders on this machine
    shimspec        pure: all of these → the shim's `spec.json`
    node, gpus      the Node object; the GPUs of each pod
    machine         the real resources of this machine
    stats, podstats the usage of pods and volumes, as a kubelet's summary
    gpuexporter     the usage of GPUs, as DCGM's exporter
    addresses       an address for each pod
    probes, logs    liveness and readiness; CRI logs → `kubectl logs`
    execs           commands run in a container on request
    agent           the loop: observes one pod, asks `plan`, and executes its steps
    podstate        the state of one pod in memory; `context` holds the states and the parts that all share
    admitting, starting, podvolumes, probing, publishing   the steps of one pod
    heartbeat       the Node object and its Lease
    access          logs, commands and connections, for the API server

Differences from a kubelet, on purpose: no images (a container's command runs in this machine's environment);
pods share the machine's network and process table, though each has its own address out of 127.64.0.0/10
(127.0.0.1 with `hostNetwork`, and on machines that answer only there); network policies are not enforced; no
service account token unless a projected volume asks for it; all containers of a pod wait until the volumes and
variables of all of them exist; the default working folder is a scratch folder of the pod; no preStop
hooks, users, cgroups; after a reboot, pods are Failed (`Terminated`, DisruptionTarget) and not started in place.

Does not belong here: the choice of a pod's node (`scheduler`), the creation of pods (`controllers`).
"""

"""The node agent: what a kubelet is to a node, for pods that run as processes of this machine.

    shim, podshim   standard library only: runs one pod, outlives the agent
    podfolder       the folder of one pod: what was decided, what the shim reports, is it alive
    leftovers       processes that must not outlive their pod
    plan            pure: what is observed of one pod → what to do next
    status          pure: pod + shim's report → `v1.PodStatus`
    environment     pure: variables, field references, `$(VAR)`
    volumes         volumes → folders on this machine
    order           pure: all of it together → the shim's `spec.json`
    node, gpus      the Node object; who holds which GPU
    machine         what this machine really has
    stats, podstats what pods and volumes use, as a kubelet's summary
    gpuexporter     what GPUs do, as DCGM's exporter
    addresses       an address for each pod
    probes, logs    liveness and readiness; CRI logs → `kubectl logs`
    execs           commands run in a container on request
    agent           the loop: sees one pod, asks `plan`, and has it done
    podstate        all that is kept of one pod in memory; `context` holds the states and what all parts share
    admitting, starting, podvolumes, probing, publishing   the steps of one pod
    heartbeat       the Node object and its Lease
    access          logs, commands and connections, for the API server

What is different from a kubelet, on purpose: no images (a container's command runs in this machine's environment);
pods share the machine's network and process table, though each has an address of its own out of 127.64.0.0/10
(127.0.0.1 with `hostNetwork`, and on machines that answer there alone); network policies are not enforced; no
service account token unless a projected volume asks for it; all containers of a pod wait until the volumes and
variables of all of them are there; a working folder that is not given is a scratch folder of the pod; no preStop
hooks, users, cgroups; after a reboot, pods are Failed (`Terminated`, DisruptionTarget) and not started in place.

Does not belong here: where a pod should run (`scheduler`), what should run at all (`controllers`).
"""

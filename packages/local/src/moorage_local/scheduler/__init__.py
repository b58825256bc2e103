"""The local cluster's scheduler: chooses a node for every pod that names it, as kube-scheduler would.

    snapshot.py    the cluster at one moment, and the cache that updates it
    filters.py     pure: which nodes can take a pod, and a reason for each that cannot
    scores.py      pure: which of those nodes is best
    preemption.py  pure: the pods to remove when all nodes are full
    queue.py       the order of pods to try
    extenders.py   scheduler extenders over HTTP, kube-scheduler's own wire format and configuration file
    decision.py    one decision: a node, or why the pod waits and which pods to remove for it
    binding.py     executes a decision: volumes, then the pod
    reporting.py   why pods wait, written in the background
    shapes.py      pure: which pods fit the same nodes
    scheduler.py   the loop that reads, decides and writes

Belongs here: the work of kube-scheduler. Does not belong here: any policy of Moorage; that is reached as on any
cluster, through an extender.
"""

"""The scheduler extender: recommends nodes to kube-scheduler so that GPUs are packed.

Belongs here: kube-scheduler's wire format, the cache for answers, its metrics, the scheduler configuration
to ship, and the simulation that plays traces through the same answers. Does not belong here: the policy itself
(`decide.packing`).

It is stateless and may be ignored: the scheduler continues without its points when it is down, and when it
starts it refuses to answer until its cache is complete.
"""

"""The scheduler extender: tells kube-scheduler where a pod should go so that GPUs are packed.

Belongs here: kube-scheduler's wire format, the cache it is answered from, its metrics, the scheduler configuration
to ship, and the simulation that plays traces through the same answers. Does not belong here: the policy itself
(`decide.packing`).

It is stateless and may be ignored: the scheduler goes on without its points when it is down, and when it starts it
refuses to answer until its cache is whole, so that it never speaks from half a picture.
"""

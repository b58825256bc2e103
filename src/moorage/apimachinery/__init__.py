"""What Kubernetes itself means: quantities, selectors, resources, the API verbs, informers.

Belongs here: rules that any Kubernetes client or server needs, with no word of
Moorage in them, so that the product and the local cluster can share one reading.
Does not belong here: our kinds (`model`), decisions (`decide`), connections
(`kube`), the server side (`localcluster`).
"""

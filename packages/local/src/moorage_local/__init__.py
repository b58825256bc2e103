"""The embedded control plane: one machine that speaks the Kubernetes API.

Belongs here: the API server and its storage, the controllers, the scheduler, the node agent and the ingress of
`moor up`. Does not belong here: the platform, which meets this package only through the Kubernetes API,
as it would meet a real cluster. It imports `moorage_kube` and nothing else of Moorage.
"""

"""The embedded control plane: one machine with a Kubernetes API.

The package has the API server and its storage, the controllers, the scheduler, the node agent and the ingress of
`moor up`. It does not have the platform: the platform uses this package only through the Kubernetes API, like a
real cluster. The package imports `moorage_kube` and nothing else of Moorage.
"""

"""The embedded control plane: one machine that speaks the Kubernetes API.

Belongs here: the API server and its storage, the controllers, the scheduler and the
node agent of `moor up`. Does not belong here: anything of Moorage itself; the rest of
the product meets this package through the Kubernetes API only, as it would meet a real
cluster. It imports `apimachinery`, `clock` and `errors` of moorage, and nothing else.
"""

"""The local cluster's API server: generic resources described by data, one pipeline for every request.

Belongs here: what a kube-apiserver does, from authentication to the stored object. Does not
belong here: what controllers, the scheduler or the kubelet do with the objects.

`server.ApiServer` is the whole; `client.InProcessClient` is how the rest of the local cluster
calls it without HTTP.
"""

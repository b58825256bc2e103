"""What the services read and write of a cluster around its objects: certificates, kubelets, queues of Kueue.

Belongs here: readers and writers that several services share. Does not belong here: the client
(`moorage_kube.remote`), decisions (`decide`).
"""

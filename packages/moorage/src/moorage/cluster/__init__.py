"""State of the cluster that several services read and write: certificates, kubelets, queues of Kueue.

Belongs here: readers and writers that several services share. Does not belong here: the client
(`moorage_kube.remote`), decisions (`decide`).
"""

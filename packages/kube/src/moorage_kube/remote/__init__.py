"""The only package that connects to the Kubernetes API over a network: kubeconfig, client, leader election,
events.

Belongs here: connections, and pure builders of the objects that are sent over them.
Does not belong here: decisions about these objects (`decide`), our kinds (`model`).
"""

"""Alone in talking to the Kubernetes API over a network: kubeconfig, client, leader election, events.

Belongs here: connections, and pure builders of the objects that go over them.
Does not belong here: deciding what to send (`decide`), what our kinds are (`model`).
"""

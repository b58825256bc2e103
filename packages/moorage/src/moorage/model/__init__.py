"""Our objects: kinds, labels, and the shape of a run.

Belongs here: frozen values and their names in Kubernetes.
Does not belong here: decisions (`decide`), connections (`kube`), the clock.
"""

"""What things are: our kinds, labels, and the shape of a run.

Belongs here: frozen values and the names under which they live in Kubernetes.
Does not belong here: choosing (`decide`), connections (`kube`), the clock.
"""

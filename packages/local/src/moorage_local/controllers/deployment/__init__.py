"""Deployments: rollouts from one ReplicaSet to the next."""

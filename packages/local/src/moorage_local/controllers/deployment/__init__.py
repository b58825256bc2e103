"""The controller of Deployments: rollouts from one ReplicaSet to the next."""

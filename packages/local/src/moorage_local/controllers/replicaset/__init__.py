"""The controller of ReplicaSets: a number of pods from one template."""

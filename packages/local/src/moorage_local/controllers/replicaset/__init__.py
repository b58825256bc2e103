"""ReplicaSets: so many pods of one template."""

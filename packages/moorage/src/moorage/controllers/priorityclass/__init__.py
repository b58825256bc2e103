"""The class of pods that name none: ours, unless the cluster has another default."""

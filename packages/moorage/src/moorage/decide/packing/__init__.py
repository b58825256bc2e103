"""The node to choose for a pod so that GPUs stay usable, and the reason."""

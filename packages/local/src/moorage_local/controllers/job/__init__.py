"""The controller of Jobs (batch/v1), with the rules of kube-controller-manager."""

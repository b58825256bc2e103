"""Jobs: batch/v1, as kube-controller-manager runs them."""

"""What a request to the Kubernetes API changes, in the words of the audit log."""

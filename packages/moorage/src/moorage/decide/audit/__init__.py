"""The changes that a request to the Kubernetes API makes, in the words of the audit log."""

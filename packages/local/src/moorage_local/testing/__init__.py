"""For tests of clients of Kubernetes: an API server in a separate process, and one in memory."""

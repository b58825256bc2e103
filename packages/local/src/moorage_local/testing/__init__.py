"""For tests of what talks to Kubernetes: an API server in a process of its own, and one in memory."""

"""Docker containers as guarded pods: translate requests to pods, and pod states to Docker's words."""

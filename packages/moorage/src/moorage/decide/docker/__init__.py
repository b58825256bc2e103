"""Docker's containers as guarded pods: the request translated, the state in Docker's words."""

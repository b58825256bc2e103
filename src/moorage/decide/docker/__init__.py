"""Docker's containers as guarded pods: the request translated, the state told in Docker's words."""

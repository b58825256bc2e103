"""Pods killed for their memory: their owners are informed, and the pods do not move from node to node."""

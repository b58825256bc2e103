"""Nodes: which are alive, which taints follow, which pods must leave."""

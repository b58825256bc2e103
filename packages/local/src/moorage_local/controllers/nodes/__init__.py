"""The controller of nodes: which nodes are alive, which taints they get, which pods must leave."""

"""MachineNodePools: labels, annotations and taints of the nodes that serve a machine group."""

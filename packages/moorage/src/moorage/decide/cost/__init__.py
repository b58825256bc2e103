"""The price of nodes, and its division among pods: exact sums of money, without input or output."""

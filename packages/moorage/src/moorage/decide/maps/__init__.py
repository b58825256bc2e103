"""Maps over many items: the plan before the start, leases of items, notices to the owner."""

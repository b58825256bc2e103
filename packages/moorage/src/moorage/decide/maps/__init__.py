"""Maps over many items: the plan before the start, leases of items, notifications to the owner."""

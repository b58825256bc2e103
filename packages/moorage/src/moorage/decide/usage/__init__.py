"""Who uses which GPU, since when and for how long."""

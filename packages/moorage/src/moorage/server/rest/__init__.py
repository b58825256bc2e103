"""The REST API under /api/v1, but for maps (`queue`), containers (`docker`) and people (`identity`)."""

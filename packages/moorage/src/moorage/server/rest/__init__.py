"""The REST API under /api/v1, except maps (`queue`), containers (`docker`) and users (`identity`)."""

"""Routes and pages of workflows."""

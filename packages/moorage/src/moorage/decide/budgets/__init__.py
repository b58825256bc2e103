"""Budgets of GPU-hours and money: their use, the recipients of notices, and the treatment of new work."""

"""Budgets of GPU-hours and money: what was used, who hears of it, what becomes of new work."""

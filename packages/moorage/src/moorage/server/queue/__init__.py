"""What workers and submitters of maps ask: items, results, limits, output."""

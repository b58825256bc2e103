"""Routes for workers and submitters of maps: items, results, limits, output."""

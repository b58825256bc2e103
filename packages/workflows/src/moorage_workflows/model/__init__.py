"""The kinds of workflows, and what is kept of a run."""

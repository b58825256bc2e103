"""The kinds of workflows, and the records of a run."""

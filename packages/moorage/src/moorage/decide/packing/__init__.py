"""Which node a pod goes to so that GPUs stay of use, and why."""

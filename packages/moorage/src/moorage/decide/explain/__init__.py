"""Why a pod waits, the holders of the resources that it needs, and its possible start."""

"""Why a pod waits, who holds what it needs, and when it could start."""

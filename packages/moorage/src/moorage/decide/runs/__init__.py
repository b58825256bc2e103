"""What happens to a run: the Job made for it, its state, its restarts, its memory kills, its usual length."""

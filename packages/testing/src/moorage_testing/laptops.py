"""Laptops of users: Python without the modules that only Unix has."""

UNIX_ONLY = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")

# run in a process first, or as its sitecustomize.py: from then on, the modules cannot be imported
HIDE_UNIX = f"import sys; sys.modules.update(dict.fromkeys({UNIX_ONLY!r}))\n"

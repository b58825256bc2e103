"""A cluster in memory for the command line."""

from moorage_testing.commandline import moor as moor

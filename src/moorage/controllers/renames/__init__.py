"""Both names of renamed fields, in every stored object."""

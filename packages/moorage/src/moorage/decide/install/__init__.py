"""An installation of Moorage on a cluster: its values, the objects they make, and what to write or remove.

Belongs here: `values` (what an admin chose), `overlay` (the choice put on the objects that we ship), `kept` (what
the cluster remembers of it), `changes` (how what is on the cluster differs), `steps` (in which order to write),
`removal` (what goes and what stays).
Does not belong here: reading from or writing to a cluster (`actions.install`).
"""

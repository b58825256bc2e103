"""The small languages in a workflow's manifest: tags, expressions, conditions, dependencies, durations.

Pure functions of strings and values, independent of workflows, nodes and pods. Every evaluation has limits, see
`limits`.
"""

"""The small languages in a workflow's manifest: tags, expressions, conditions, dependencies, durations.

Pure functions of text and values. Nothing here knows a workflow, a node or a pod. Every evaluation is bounded:
see `limits`.
"""

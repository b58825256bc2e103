"""Argo's format as a feature of Moorage: text, graph, lint, executor, operator, pages, commands.

The platform finds it by the entry point `moorage.features` and imports nothing of it.
"""

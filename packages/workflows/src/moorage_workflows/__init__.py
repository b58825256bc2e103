"""Argo's format as a feature of Moorage: text, graph, lint, executor, operator, pages, commands.

The platform finds this package by the entry point `moorage.features` and imports nothing from it.
"""

"""The form of objects: the types of built-in kinds, schemas of custom kinds, metadata, field errors.

`builtin.json` is made from a running kube-apiserver by `distil`.
"""

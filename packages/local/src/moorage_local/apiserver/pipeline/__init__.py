"""The way of every request: authorise, decode, default, admit, validate, store.

    calls       what goes in and what comes out
    records     objects in storage
    reading     get, list, watch         pages     selectors, versions, continue tokens
    writing     create, update, patch    bodies, patching   pure: what a body or a patch makes of an object
    pipeline    the whole, with delete   marking   pure: what a deletion makes of an object
    refusals    the errors that every kind shares

Each class builds on the one before: Records, Reader, Writer, Pipeline. None knows any single kind.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

"""The steps of every request: authorise, decode, default, admit, validate, store.

    calls       inputs and results
    records     objects in storage
    reading     get, list, watch         pages     selectors, versions, continue tokens
    writing     create, update, patch    bodies, patching   pure: apply a body or a patch to an object
    pipeline    the whole, with delete   marking   pure: apply a deletion to an object
    refusals    the errors that every kind shares

Each class extends the one before: Records, Reader, Writer, Pipeline. They have no code for any single kind.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

"""Programs that run inside users' pods: single files, standard library only, for any Python from 3.8 on.

The rest of Moorage does not import them, and they do not import it: the files are sent as text.
"""

"""What runs inside users' pods: single files, standard library only, for any Python from 3.8 on.

Nothing here is imported by the rest of Moorage, and nothing here imports it: the files are sent along as text.
"""

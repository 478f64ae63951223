"""Decides, without any I/O, what has to be done for one custom resource.

`snapshot` says what is, `actions` what can be done; the other modules turn the one into the other.
"""

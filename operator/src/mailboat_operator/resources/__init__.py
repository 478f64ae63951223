"""Builds the Kubernetes objects that a Broker and a NameServer consist of.

Pure: an object depends on the resource and on what is passed in, never on a clock, on chance or on
the order of a mapping, so two builds are identical and an unchanged resource changes nothing.
"""

"""Answers to requests, one module per family; each offers `register(dispatcher, controller)`.

A processor translates: ext fields and JSON bodies in, calls of the managers and the store, answers
out. It keeps no state of its own. What a client got wrong is a `BrokerError` with one clear
sentence; the dispatcher turns it into the answer.
"""

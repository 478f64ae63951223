"""Pure data: messages, records, names, ids, topics, subscriptions.

Belongs here: values that the store, the protocol, the broker and the client all speak of, with
their byte layouts. Never here: input or output of any kind, clocks, settings.
"""

"""The name server: which broker serves which topic, in memory; the key-value table has a file.

What belongs here: the route table (`route_info`, pure), the key-value table and its file
(`kv_config`), the answers to requests (`processor`) and the process part (`controller`). May import
remoting, protocol, disk, model, config and errors; never the broker or the store.
"""

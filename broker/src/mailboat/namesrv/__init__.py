"""The name server: which broker serves which topic, in memory only.

What belongs here: the route table (`route_info`, pure), the key-value table (`kv_config`, pure),
the answers to requests (`processor`) and the process part (`controller`). May import remoting,
protocol, model, config and errors; never the broker, the store or the disk.
"""

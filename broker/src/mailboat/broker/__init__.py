"""The broker: what clients ask of it, and the state behind the answers.

Belongs here: the controller that composes everything, one processor module per family of requests,
the tables of topics, groups, offsets and clients, registration at name servers, long polling and
background tasks. Never here: bytes of frames and bodies (`mailboat.protocol`), files of messages
(`mailboat.store`), sockets (`mailboat.remoting`). May import those three and what lies below them.
"""

"""HTTP: metrics, probes, and the JSON API for administration and batch produce.

What belongs here: aiohttp applications over the controllers, and what they show. The broker and the
name server do not know that they are shown. `context` is light; everything else pulls in aiohttp
and is imported by `mailboat.node` when it is needed. May import broker, namesrv, client and below.
"""

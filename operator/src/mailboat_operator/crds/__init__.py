"""The custom resources of mailboat: what a user may write, as typed values.

The structs here are the single source: parsing, defaults, the OpenAPI schema with its CEL rules,
the CRD files in `charts/mailboat-crds` and the reference in `docs/crds.md` all follow from them.
Pure: no I/O but in `__main__`, which writes the files.
"""

"""The lease of a group, and where its clients connect, as objects of Kubernetes."""

"""The operator for Kubernetes; it comes with a later release."""

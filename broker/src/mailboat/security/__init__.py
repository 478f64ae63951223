"""Who may do what, and what protects a connection: no sockets and no event loop."""

"""HTTP on the client side: connections, headers, bodies, and which model a request names."""

"""HTTP at the front door: connections, headers, bodies, and which model a request names."""

"""A gRPC server by callbacks, without grpcio: what it costs is in `http2.py`."""

"""The protocols of a pod's servers: V1 and V2 over HTTP, V2 over gRPC, KServe's own routes."""

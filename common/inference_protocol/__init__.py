"""The Open Inference Protocol (V2): datatypes, tensors, and their JSON, binary and gRPC forms."""

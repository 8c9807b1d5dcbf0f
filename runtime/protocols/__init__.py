"""What is spoken to a pod: V1, V2, gRPC, and the tensors they carry."""

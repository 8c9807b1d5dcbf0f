"""What is recorded of requests: metrics, response headers, explanations, arrivals."""

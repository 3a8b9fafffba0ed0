"""What runs inside a function instance: loading user code and weights, executing requests."""

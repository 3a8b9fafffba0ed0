"""REST v2 of the Open Inference Protocol: HTTP/1.1 on a port of its own."""

"""What gpu-server does: staging, swapping, attaching, granting. Runs on the event loop; I/O by adapters."""

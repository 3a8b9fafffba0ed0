"""What gpu-server knows: devices, residents, executors, leases, who waits. No I/O, no awaiting."""

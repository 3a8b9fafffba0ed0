"""Every I/O of gpu-server: other services, executors, processes, files."""

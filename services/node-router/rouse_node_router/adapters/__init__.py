"""Every I/O of node-router: gpu-server, executors, cluster-manager."""

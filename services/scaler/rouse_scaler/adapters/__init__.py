"""Every I/O of scaler: cluster-manager and the coordinators."""

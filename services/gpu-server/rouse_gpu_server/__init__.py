"""The devices of a node as one pool: residency, swapping, eviction, leases."""

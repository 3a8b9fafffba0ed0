"""Every decision of the mesh as a pure function from a snapshot to a decision with its reason."""

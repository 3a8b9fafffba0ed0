"""Life of the function instances of a node, and the registration table."""

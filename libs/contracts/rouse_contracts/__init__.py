"""Generated protobuf contracts of Rouse, and the few helpers to use them."""

"""Everything outside of the coordinator that it speaks with."""

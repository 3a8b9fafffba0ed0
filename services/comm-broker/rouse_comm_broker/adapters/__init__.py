"""Everything that comm-broker reads and writes: NATS."""

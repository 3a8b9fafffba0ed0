"""Everything that leaves the process: other services, NATS, rows of the database."""

"""Real servers for tests: PostgreSQL, NATS, Redis, a whole mesh; a manual clock."""

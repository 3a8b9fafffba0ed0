"""Functions, nodes, placements, health, recovery and usage; the only writer of PostgreSQL."""

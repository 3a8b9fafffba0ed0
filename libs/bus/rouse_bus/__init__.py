"""NATS: subjects, streams, object store."""

"""The entry of a node: queues, deadlines, retries."""

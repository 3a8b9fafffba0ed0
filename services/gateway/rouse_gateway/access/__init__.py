"""Who calls, and what they may: checked in memory, before anything else is done for a request."""

"""What every Rouse service is made with: clock, config, errors, telemetry, RPC, tasks, lifecycle."""

"""Who may do what: tenants, API keys, secrets, and the table that gateways check keys with."""

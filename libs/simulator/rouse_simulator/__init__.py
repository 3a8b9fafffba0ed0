"""Late binding in virtual time: nodes and clusters that run the services' policies on recorded or drawn arrivals."""

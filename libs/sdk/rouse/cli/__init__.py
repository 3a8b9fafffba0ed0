"""The command line `rouse`."""

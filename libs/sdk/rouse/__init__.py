"""Rouse: client and command line of the serverless inference mesh."""
